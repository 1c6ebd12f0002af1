// Prints random pods and what Kubernetes itself says they ask for, one JSON object per line.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"
)

var random = rand.New(rand.NewSource(2))

func requests() {
	file, err := os.Create("request.jsonl")
	check(err)
	defer file.Close()
	out := bufio.NewWriter(file)
	defer out.Flush()
	for range 80 {
		pod := randomPod()
		asked := helpers.PodRequests(pod, helpers.PodResourcesOptions{
			UseStatusResources: true,
			InPlacePodLevelResourcesVerticalScalingEnabled: true,
		})
		line, err := json.Marshal(map[string]any{
			"pod":     map[string]any{"spec": pod.Spec, "status": pod.Status},
			"request": asked,
		})
		check(err)
		fmt.Fprintln(out, string(line))
	}
}

func randomPod() *v1.Pod {
	pod := &v1.Pod{}
	for index := range 1 + random.Intn(2) {
		pod.Spec.Containers = append(pod.Spec.Containers, container(fmt.Sprintf("c%d", index)))
	}
	always := v1.ContainerRestartPolicyAlways
	for index := range random.Intn(4) {
		init := container(fmt.Sprintf("i%d", index))
		if random.Intn(2) == 0 {
			init.RestartPolicy = &always
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, init)
	}
	if random.Intn(3) == 0 {
		pod.Spec.Overhead = list()
	}
	if random.Intn(3) == 0 {
		pod.Spec.Resources = &v1.ResourceRequirements{Requests: list()}
		if random.Intn(2) == 0 {
			pod.Status.AllocatedResources = list()
			if random.Intn(2) == 0 {
				pod.Status.Resources = &v1.ResourceRequirements{Requests: list()}
			}
		}
	}
	for _, c := range pod.Spec.Containers {
		if random.Intn(2) == 0 {
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, status(c.Name))
		}
	}
	for _, c := range pod.Spec.InitContainers {
		if random.Intn(2) == 0 {
			pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses, status(c.Name))
		}
	}
	switch random.Intn(4) {
	case 0:
		pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodResizePending, Reason: v1.PodReasonInfeasible}}
	case 1:
		pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady}, {Type: v1.PodResizePending, Reason: v1.PodReasonDeferred}}
	}
	return pod
}

func container(name string) v1.Container {
	return v1.Container{Name: name, Resources: v1.ResourceRequirements{Requests: list()}}
}

func status(name string) v1.ContainerStatus {
	status := v1.ContainerStatus{Name: name, AllocatedResources: list()}
	if random.Intn(3) > 0 {
		status.Resources = &v1.ResourceRequirements{Requests: list()}
	}
	return status
}

func list() v1.ResourceList {
	list := v1.ResourceList{}
	if random.Intn(4) > 0 {
		list[v1.ResourceCPU] = *resource.NewMilliQuantity(int64(random.Intn(4000)), resource.DecimalSI)
	}
	if random.Intn(4) > 0 {
		list[v1.ResourceMemory] = *resource.NewQuantity(int64(random.Intn(64))<<24, resource.BinarySI)
	}
	if random.Intn(4) == 0 {
		list["hugepages-2Mi"] = *resource.NewQuantity(int64(random.Intn(8))<<21, resource.BinarySI)
	}
	if random.Intn(4) == 0 {
		list["nvidia.com/gpu"] = *resource.NewQuantity(int64(random.Intn(4)), resource.DecimalSI)
	}
	return list
}
