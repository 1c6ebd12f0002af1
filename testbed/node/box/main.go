// box is the only program in the images of the testbed's real nodes: what a test container does, and the pause container.
// Its arguments are actions, carried out in order; what they print is the container's log. Needs no shell and no libc.
//
//	box say hello show /etc/app/key get https://10.0.0.1:6443/api/v1/namespaces/x/configmaps/y stay
//
// It must not retry nor wait longer than an action says: tests wait, with a deadline of their own.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Where a kubelet puts what a pod needs to call its API server.
const account = "/var/run/secrets/kubernetes.io/serviceaccount/"

// How often watched files are read.
const look = 100 * time.Millisecond

// farewell is said when SIGTERM arrives, after delay; set by the action `on-term`.
var farewell struct {
	text  string
	delay time.Duration
}

var actions = map[string]struct {
	arguments int
	run       func(arguments []string) error
}{
	// Prints a text.
	"say": {1, func(a []string) error { fmt.Println(a[0]); return nil }},
	// Prints an environment variable as NAME=value.
	"env": {1, func(a []string) error { fmt.Printf("%s=%s\n", a[0], os.Getenv(a[0])); return nil }},
	// Prints a file.
	"show": {1, func(a []string) error {
		text, err := os.ReadFile(a[0])
		fmt.Printf("%s\n", bytes.TrimSpace(text))
		return err
	}},
	// Writes a text into a file.
	"write": {2, func(a []string) error { return os.WriteFile(a[0], []byte(a[1]), 0o644) }},
	// Waits until a file exists.
	"await": {1, func(a []string) error {
		for ; ; time.Sleep(look) {
			if _, err := os.Stat(a[0]); err == nil {
				return nil
			}
		}
	}},
	// Fails unless a file exists: for probes.
	"exists": {1, func(a []string) error { _, err := os.Stat(a[0]); return err }},
	// Prints the first of several files (separated by commas) that exists, again whenever it changes; never ends.
	"follow": {1, func(a []string) error { return follow(strings.Split(a[0], ",")) }},
	// Calls the API server as a pod does, with the CA and token that its volume holds, and prints the answer.
	"get": {1, func(a []string) error { return get(a[0]) }},
	// Uses this many MiB of memory.
	"eat": {1, func(a []string) error {
		mebibytes, err := strconv.Atoi(a[0])
		for range mebibytes {
			page := make([]byte, 1<<20)
			for i := range page {
				page[i] = 1
			}
			eaten = append(eaten, page)
		}
		return err
	}},
	// Sleeps, such as 1s.
	"sleep": {1, func(a []string) error {
		duration, err := time.ParseDuration(a[0])
		time.Sleep(duration)
		return err
	}},
	// Says a text when SIGTERM arrives, this long after it, and then ends.
	"on-term": {2, func(a []string) (err error) {
		farewell.text = a[1]
		farewell.delay, err = time.ParseDuration(a[0])
		return err
	}},
	// Writes the termination message.
	"last-words": {1, func(a []string) error { return os.WriteFile("/dev/termination-log", []byte(a[0]), 0o644) }},
	// Ends with this code.
	"exit": {1, func(a []string) error {
		code, err := strconv.Atoi(a[0])
		if err == nil {
			os.Exit(code)
		}
		return err
	}},
	// Answers HTTP on a port with 200, or 503 while the file is missing.
	"serve": {2, func(a []string) error { return serve(a[0], a[1]) }},
	// Stays until SIGTERM.
	"stay": {0, func([]string) error { select {} }},
	// Is the first process of a pod: reaps processes that lost their parent.
	"pause": {0, func([]string) error {
		children := make(chan os.Signal, 1)
		signal.Notify(children, syscall.SIGCHLD)
		for range children {
			for {
				if pid, _ := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 {
					break
				}
			}
		}
		return nil
	}},
}

// eaten keeps memory from being collected.
var eaten [][]byte

func main() {
	// The first process of a container gets no default handlers: without this, SIGTERM would be ignored.
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-term
		time.Sleep(farewell.delay)
		if farewell.text != "" {
			fmt.Println(farewell.text)
		}
		os.Exit(0)
	}()
	for rest := os.Args[1:]; len(rest) > 0; {
		action, known := actions[rest[0]]
		if !known || len(rest) <= action.arguments {
			fmt.Fprintf(os.Stderr, "box: no action %q, or too few arguments\n", rest[0])
			os.Exit(2)
		}
		if err := action.run(rest[1 : 1+action.arguments]); err != nil {
			fmt.Fprintf(os.Stderr, "box: %s: %v\n", rest[0], err)
			os.Exit(1)
		}
		rest = rest[1+action.arguments:]
	}
}

func follow(paths []string) error {
	last := ""
	for ; ; time.Sleep(look) {
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				continue
			}
			if now := strings.TrimSpace(string(text)); now != last {
				last = now
				fmt.Printf("%s: %s\n", filepath.Base(path), now)
			}
			break
		}
	}
}

func get(url string) error {
	authority, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		return err
	}
	token, err := os.ReadFile(account + "token")
	if err != nil {
		return err
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(authority)
	client := http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}},
	}
	request, err := http.NewRequest(http.MethodGet, os.ExpandEnv(url), nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+string(token))
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	fmt.Printf("%d %s\n", answer.StatusCode, strings.Join(strings.Fields(string(body)), " "))
	return err
}

func serve(port, file string) error {
	return http.ListenAndServe(":"+port, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, err := os.Stat(file); err != nil {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
		}
	}))
}
