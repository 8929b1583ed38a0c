package idtui

import "github.com/vito/midterm"

// vtTerm gives the served midterm release the log-search calls it does not
// have yet; they find nothing. Only the interactive UI uses them.
type vtTerm struct {
	*midterm.Terminal
	SearchMatches []struct{ Row int }
}

func (*vtTerm) Search(string) int                { return 0 }
func (*vtTerm) SearchClear()                     {}
func (*vtTerm) SearchMatchRows() []int           { return nil }
func (*vtTerm) SearchSetCurrent(int) (int, bool) { return -1, false }
