// Package teav1 stands in for the form adapter of the UI this build leaves out.
package teav1

import "github.com/vito/tuist"

type Wrap struct{ tuist.Compo }

func New(any) *Wrap              { return &Wrap{} }
func (*Wrap) OnQuit(func())      {}
func (*Wrap) Render(tuist.Context) {}
