#!/bin/bash
# Build or fetch the programs of the test cluster (tests/cluster) into build/cluster, once.
#   kubernetes-VERSION/  compiled from the Go module proxy; tests/cluster/kubernetes pins and hashes
#   helm-VERSION/        for the tests of the chart; compiled likewise, see tests/cluster/helm
#   agent-sandbox-VERSION/  its controller and manifests, likewise (tests/cluster/agent-sandbox)
#   kube-router-VERSION/ enforces NetworkPolicy; compiled likewise, see tests/cluster/kube-router
#   debian/              etcd, containerd, runc, ipset and network plugins: packages, unpacked
# A copy is kept in the user's cache (~/.cache/sandkasten), from which the next clone takes it.
# A module that the proxy refuses is named, and fails.
# KEEP_GO_CACHE=1 keeps the sources and compiled packages (several GB), for work on this script.
set -euo pipefail
cd "$(dirname "$0")/.."

modules=tests/cluster/kubernetes
version=$(sed -n 's|^require k8s.io/kubernetes ||p' $modules/go.mod)
place=$PWD/build/cluster
out=$place/kubernetes-$version
helm_version=$(sed -n 's|^require helm.sh/helm/v3 ||p' tests/cluster/helm/go.mod)
helm=$place/helm-$helm_version/helm
agent_modules=tests/cluster/agent-sandbox
agent_version=$(sed -n 's|^require sigs.k8s.io/agent-sandbox ||p' $agent_modules/go.mod)
agent_out=$place/agent-sandbox-$agent_version
router_version=$(sed -n 's|^\s*github.com/cloudnativelabs/kube-router/v2 ||p' tests/cluster/kube-router/go.mod)
router=$place/kube-router-$router_version/policy-controller
# In the order in which a cluster can make use of them.
servers=(kubelet kube-apiserver kube-scheduler kube-controller-manager)
packages=(etcd-server containerd runc containernetworking-plugins ipset libipset13 libmnl0)
mkdir -p "$place"
exec 9>"$place/.lock"
flock 9

fail() {
    echo "cluster_build.sh: $1" >&2
    exit 1
}
. scripts/test_programs.sh
go_wanted=$(sed -n 's/^go //p' $modules/go.mod)

compile_servers() {
    mkdir -p "$out"
    local names=("${servers[@]/#/k8s.io/kubernetes/cmd/}") refused
    echo "fetching the sources of Kubernetes $version"
    # Lists every module that is refused, before anything is compiled. (Else the first would end a
    # build of half an hour.)
    if ! refused=$(cd $modules && go list -e -deps -f '{{with .Error}}{{.}}{{end}}' "${names[@]}" 2>"$place/go.log"); then
        tail -n 20 "$place/go.log" >&2
        fail "the Go module proxy does not provide k8s.io/kubernetes $version"
    fi
    if [ -n "$refused" ]; then
        head -n 20 <<<"$refused" >&2
        fail "the Go module proxy refuses a module of Kubernetes $version"
    fi
    local name start version_of=k8s.io/component-base/version
    local number=${version#v}
    local flags="-s -w -X $version_of.gitVersion=$version -X $version_of.gitMajor=${number%%.*}"
    number=${number#*.}
    flags+=" -X $version_of.gitMinor=${number%%.*}"
    for name in "${servers[@]}"; do
        [ ! -x "$out/$name" ] || continue
        start=$SECONDS
        echo "compiling $name"
        (cd $modules && nice -n 19 go build -p "$(nproc)" -ldflags "$flags" -o "$out/$name.new" "k8s.io/kubernetes/cmd/$name") ||
            fail "$name does not compile"
        mv "$out/$name.new" "$out/$name"
        echo "compiled $name in $((SECONDS - start)) s"
    done
}

compile_helm() {
    echo "compiling helm $helm_version"
    mkdir -p "${helm%/*}"
    (cd tests/cluster/helm && nice -n 19 go build -p "$(nproc)" -ldflags '-s -w' -o "$helm.new" helm.sh/helm/v3/cmd/helm) ||
        fail "helm does not compile"
    mv "$helm.new" "$helm"
}

compile_agent_sandbox() {
    local made=$agent_out.new name=agent-sandbox-controller sources start=$SECONDS
    rm -rf "$made"
    mkdir -p "$made"
    echo "compiling the controller of agent-sandbox $agent_version"
    (cd $agent_modules && nice -n 19 go build -p "$(nproc)" -ldflags '-s -w' -o "$made/$name" "sigs.k8s.io/agent-sandbox/cmd/$name") ||
        fail "$name does not compile"
    sources=$(cd $agent_modules && go list -m -f '{{.Dir}}' sigs.k8s.io/agent-sandbox)
    cp -r "$sources/k8s/crds" "$sources/k8s/rbac.generated.yaml" "$made"
    rm -rf "$agent_out"
    mv "$made" "$agent_out"
    echo "compiled $name in $((SECONDS - start)) s"
}

compile_router() {
    echo "compiling the policy controller of kube-router $router_version"
    mkdir -p "${router%/*}"
    (cd tests/cluster/kube-router && nice -n 19 go build -p "$(nproc)" -ldflags '-s -w' -o "$router.new" .) ||
        fail "the policy controller does not compile"
    mv "$router.new" "$router"
}

take_kept scripts/cluster_build.sh $modules tests/cluster/helm $agent_modules tests/cluster/kube-router
# A set of packages from before ipset was one of them is replaced.
[ -x "$place/debian/usr/sbin/ipset" ] || unpack_packages "${packages[@]}"
for name in "${servers[@]}"; do
    if [ ! -x "$out/$name" ]; then
        prepare_go "$go_wanted"
        compile_servers
        break
    fi
done
if [ ! -x "$helm" ]; then
    prepare_go "$go_wanted"
    compile_helm
fi
if [ ! -x "$agent_out/agent-sandbox-controller" ]; then
    prepare_go "$go_wanted"
    compile_agent_sandbox
fi
if [ ! -x "$router" ]; then
    prepare_go "$go_wanted"
    compile_router
fi
keep debian "${out##*/}" "helm-$helm_version" "${agent_out##*/}" "kube-router-$router_version"
[ "${KEEP_GO_CACHE:-}" = 1 ] || rm -rf "$place/go"
