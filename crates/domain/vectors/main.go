// Writes what Kubernetes' own code answers, for the Rust tests to agree with: `go run .` in this folder.
package main

func main() {
	quantities()
	requests()
	selectors()
	securities()
	placements()
}
