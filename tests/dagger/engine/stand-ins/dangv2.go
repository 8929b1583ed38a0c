// Package dangv2 stands in for the Dang v2 module language this build leaves out.
package dangv2

import (
	"context"
	"errors"

	"github.com/dagger/dagger/core"
	"github.com/dagger/dagger/dagql"
)

var errLeftOut = errors.New("Dang v2 modules are not in this build")

type Impl struct{}

func (Impl) ModuleTypes(context.Context, *core.SchemaBuilder, dagql.ObjectResult[*core.ModuleSource], dagql.ObjectResult[*core.Module]) (inst dagql.ObjectResult[*core.Module], err error) {
	return inst, errLeftOut
}

func (Impl) Runtime(context.Context, *core.SchemaBuilder, dagql.ObjectResult[*core.ModuleSource]) (core.ModuleRuntime, error) {
	return nil, errLeftOut
}
