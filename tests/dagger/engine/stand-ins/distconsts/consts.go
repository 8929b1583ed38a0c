// Package distconsts names the places our own engine layout uses.
package distconsts

const (
	EngineContainerName                = "dagger-engine"
	DefaultEngineSockAddr              = "unix:///run/dagger/engine.sock"
	RuncPath                           = "/usr/local/bin/runc"
	DaggerInitPath                     = "/usr/local/bin/dagger-init"
	EngineDefaultStateDir              = "/var/lib/dagger"
	EngineContainerBuiltinContentDir   = "/usr/local/share/dagger/content"
	EngineCustomCACertsDir             = "/usr/local/share/ca-certificates"
	GoSDKManifestDigestEnvName         = "DAGGER_GO_SDK_MANIFEST_DIGEST"
	PythonSDKManifestDigestEnvName     = "DAGGER_PYTHON_SDK_MANIFEST_DIGEST"
	TypescriptSDKManifestDigestEnvName = "DAGGER_TYPESCRIPT_SDK_MANIFEST_DIGEST"
	AlpineImage                        = "alpine:latest"
	OCIVersionAnnotation               = "org.opencontainers.image.version"
)
