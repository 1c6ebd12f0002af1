// Prints random pods, nodes, and whether Kubernetes would schedule the one on the other, one JSON object per line.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

func placements() {
	file, err := os.Create("placement.jsonl")
	check(err)
	defer file.Close()
	out := bufio.NewWriter(file)
	defer out.Flush()
	for range 320 {
		pod, node := placedPod(), &v1.Node{ObjectMeta: meta.ObjectMeta{Name: pick("n1", "n2"), Labels: map[string]string{}}}
		for _, key := range []string{"a", "b", "x.io/c"} {
			if !one(4) {
				node.Labels[key] = pick("1", "2", "10", "text", "")
			}
		}
		for range random.Intn(3) {
			node.Spec.Taints = append(node.Spec.Taints, v1.Taint{
				Key: pick("k", "l"), Value: pick("", "v", "5", "10", "-5", "05"), Effect: effect(),
			})
		}
		matches, _ := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
		repels := func(taint *v1.Taint) bool {
			return taint.Effect == v1.TaintEffectNoSchedule || taint.Effect == v1.TaintEffectNoExecute
		}
		var untolerated *v1.Taint
		taint, found := helpers.FindMatchingUntoleratedTaint(klog.Logger{}, node.Spec.Taints, pod.Spec.Tolerations, repels, true)
		if found {
			untolerated = &taint
		}
		spec := map[string]any{
			"nodeSelector": pod.Spec.NodeSelector, "affinity": pod.Spec.Affinity, "tolerations": pod.Spec.Tolerations,
		}
		taints := append([]v1.Taint{}, node.Spec.Taints...)
		line, err := json.Marshal(map[string]any{
			"spec": spec, "name": node.Name, "labels": node.Labels, "taints": taints, "matches": matches, "untolerated": untolerated,
		})
		check(err)
		fmt.Fprintln(out, string(line))
	}
}

func effect() v1.TaintEffect {
	return v1.TaintEffect(pick("NoSchedule", "NoExecute", "PreferNoSchedule"))
}

func placedPod() *v1.Pod {
	pod := &v1.Pod{}
	if one(4) {
		pod.Spec.NodeSelector = map[string]string{pick("a", "b"): pick("1", "2", "10", "text", "")}
	}
	if one(3) {
		selector := &v1.NodeSelector{}
		for range random.Intn(4) {
			selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, term())
		}
		affinity := &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: selector}
		pod.Spec.Affinity = &v1.Affinity{NodeAffinity: affinity}
	}
	for range random.Intn(4) {
		toleration := v1.Toleration{
			Key:      pick("", "k", "k", "l", "l"),
			Operator: v1.TolerationOperator(pick("", "Equal", "Exists", "Exists", "Lt", "Gt", "Near")),
			Value:    pick("", "v", "5", "7", "-5", "05"),
		}
		if one(2) {
			toleration.Effect = effect()
		}
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, toleration)
	}
	return pod
}
