// The part of kube-router that enforces NetworkPolicy on one node, without its routes, services and
// clients of clouds, which take most of the time to compile.
//
//	policy-controller KUBECONFIG NODE SERVICES
package main

import (
	"os"
	"sync"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"github.com/cloudnativelabs/kube-router/v2/pkg/svcip"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

func check(err error) {
	if err != nil {
		klog.Fatal(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func main() {
	config := options.NewKubeRouterConfig()
	config.EnableIPv4 = true
	config.Kubeconfig, config.HostnameOverride, config.ClusterIPCIDRs = os.Args[1], os.Args[2], os.Args[3:4]
	access := must(clientcmd.BuildConfigFromFlags("", config.Kubeconfig))
	client := must(kubernetes.NewForConfig(access))
	ranges := must(svcip.NewValidator(svcip.Config{ClusterIPCIDRs: config.ClusterIPCIDRs, EnableIPv4: true}))
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	stop := make(chan struct{})
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	tables, sets, err := netpol.NewIPTablesHandlers(config)
	check(err)
	var lock sync.Mutex
	controller := must(netpol.NewNetworkPolicyController(
		client, config, pods, policies, namespaces, &lock, nil, tables, sets, ranges))
	handlers := map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		pods:       controller.PodEventHandler,
		namespaces: controller.NamespaceEventHandler,
		policies:   controller.NetworkPolicyEventHandler,
	}
	for informer, handler := range handlers {
		must(informer.AddEventHandler(handler))
	}
	// Nothing asks for its health.
	health := make(chan *healthcheck.ControllerHeartbeat)
	go func() {
		for range health {
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	controller.Run(health, stop, &running)
}
