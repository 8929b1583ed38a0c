// Package tuist stands in for a terminal-UI toolkit this build leaves out.
// Only the plain (non-interactive) frontend works; starting the UI fails.
package tuist

import (
	"errors"
	"io"
	"time"

	uv "github.com/charmbracelet/ultraviolet"
)

type Context struct{ Width, Height int }

func (Context) Line(string)                 {}
func (Context) Lines(...string)             {}
func (c Context) Resize(w, h int) Context   { return Context{w, h} }
func (Context) ScreenHeight() int           { return 0 }
func (Context) Done() <-chan struct{}       { return nil }
func (Context) Err() error                  { return nil }

func (Context) SetFocus(Component) {}

type Component interface{ Render(Context) }
type Focusable interface{ SetFocused(Context, bool) }
type Dismounter interface{ OnDismount() }
type Mounter interface{ OnMount(Context) }
type Interactive interface {
	HandleKeyPress(Context, uv.KeyPressEvent) bool
}
type MouseEvent struct {
	uv.MouseEvent
	Row, Col int
}
type MouseEnabled interface {
	HandleMouse(Context, MouseEvent) bool
}
type Hoverable interface{ SetHovered(Context, bool) }

type RenderResult struct{ Lines []string }

type Compo struct{}

func (*Compo) Update()                                               {}
func (*Compo) RenderChild(Context, Component)                        {}
func (*Compo) RenderChildInline(Context, Component) string           { return "" }
func (*Compo) RenderChildResult(Context, Component) RenderResult     { return RenderResult{} }

type Container struct {
	Compo
	Children []Component
}

func (*Container) Render(Context)         {}
func (c *Container) AddChild(x Component) { c.Children = append(c.Children, x) }

type Spinner struct {
	Compo
	Epoch time.Time
}

func NewSpinner() *Spinner      { return &Spinner{} }
func (*Spinner) Render(Context) {}

type TextInput struct {
	Compo
	Prompt         string
	OnSubmit       func(Context, string) bool
	KeyInterceptor func(Context, uv.KeyPressEvent) bool
	value          string
}

func NewTextInput(string) *TextInput      { return &TextInput{} }
func (*TextInput) Render(Context)         {}
func (t *TextInput) Value() string        { return t.value }
func (t *TextInput) SetValue(v string)    { t.value = v }
func (t *TextInput) InsertRune(r rune)    { t.value += string(r) }

type Completion struct{ Label, Detail string }
type CompletionResult struct {
	Items       []Completion
	ReplaceFrom int
}
type CompletionMenu struct{}

func NewCompletionMenu(*TextInput, func(string, int) CompletionResult) *CompletionMenu {
	return &CompletionMenu{}
}
func (*CompletionMenu) HandleKeyPress(Context, uv.KeyPressEvent) bool { return false }

type Anchor int

const AnchorTopRight Anchor = 0

type Size int

func SizeAbs(n int) Size { return Size(n) }

type OverlayMargin struct{ Top, Right, Bottom, Left int }
type OverlayOptions struct {
	Width  Size
	Anchor Anchor
	Margin OverlayMargin
}
type OverlayHandle struct{}

func (*OverlayHandle) Remove() {}

type Terminal struct{}

func NewStdTerminal() *Terminal { return &Terminal{} }

type TUI struct{}

func New(*Terminal) *TUI                                             { return &TUI{} }
func (*TUI) AddChild(Component)                                      {}
func (*TUI) RemoveChild(Component)                                   {}
func (*TUI) Dispatch(fn func())                                      { fn() }
func (*TUI) Exec(fn func(io.Reader, io.Writer, io.Writer) error) error          { return errNoUI }
func (*TUI) RenderLines() []string                          { return nil }
func (*TUI) RequestRender(bool)                                      {}
func (*TUI) SetDebugWriter(io.Writer)                                {}
func (*TUI) SetFocus(Component)                                      {}
func (*TUI) SetShowHardwareCursor(bool)                              {}
func (*TUI) ShowOverlay(Component, *OverlayOptions) *OverlayHandle   { return &OverlayHandle{} }
func (*TUI) Start() error                                            { return errNoUI }
func (*TUI) Stop()                                                   {}

var errNoUI = errors.New("this build has no terminal UI: use --progress=plain")
