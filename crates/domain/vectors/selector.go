// Prints random node selectors, nodes, and whether Kubernetes says they match, one JSON object per line.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

func selectors() {
	file, err := os.Create("selector.jsonl")
	check(err)
	defer file.Close()
	out := bufio.NewWriter(file)
	defer out.Flush()
	for range 160 {
		selector := &v1.NodeSelector{}
		for range 1 + random.Intn(2) {
			selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, term())
		}
		node := &v1.Node{ObjectMeta: meta.ObjectMeta{Name: pick("n1", "n2"), Labels: map[string]string{}}}
		for _, key := range []string{"a", "b", "x.io/c"} {
			if random.Intn(3) > 0 {
				node.Labels[key] = pick("1", "2", "10", "text", "")
			}
		}
		_, err := nodeaffinity.NewNodeSelector(selector)
		matches, _ := nodeaffinity.NewLazyErrorNodeSelector(selector).Match(node)
		line, fail := json.Marshal(map[string]any{
			"selector": selector, "name": node.Name, "labels": node.Labels, "matches": matches, "valid": err == nil,
		})
		check(fail)
		fmt.Fprintln(out, string(line))
	}
}

func term() v1.NodeSelectorTerm {
	term := v1.NodeSelectorTerm{}
	for range random.Intn(3) {
		requirement := v1.NodeSelectorRequirement{
			Key:      pick("a", "b", "x.io/c", "a", "b", "-bad"),
			Operator: v1.NodeSelectorOperator(pick("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "In", "Equals")),
		}
		if requirement.Operator != "Exists" && requirement.Operator != "DoesNotExist" || random.Intn(8) == 0 {
			for range 1 + random.Intn(2) {
				requirement.Values = append(requirement.Values, pick("1", "2", "5", "text", "", "-5", "b d"))
				if requirement.Operator == "Gt" || requirement.Operator == "Lt" {
					break
				}
			}
		}
		term.MatchExpressions = append(term.MatchExpressions, requirement)
	}
	if random.Intn(3) == 0 {
		requirement := v1.NodeSelectorRequirement{Key: "metadata.name", Operator: v1.NodeSelectorOperator(pick("In", "NotIn", "In", "Exists"))}
		for range 1 + random.Intn(5)/4 {
			requirement.Values = append(requirement.Values, pick("n1", "n2"))
		}
		term.MatchFields = append(term.MatchFields, requirement)
	}
	return term
}

func pick(options ...string) string {
	return options[random.Intn(len(options))]
}
