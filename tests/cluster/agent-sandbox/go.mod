module sandkasten.test/agent-sandbox

go 1.26.0

require sigs.k8s.io/agent-sandbox v0.5.6
