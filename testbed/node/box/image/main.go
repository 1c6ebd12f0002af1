// image writes an OCI image of one layer as a tar archive that `ctr images import` reads. Needs no image tool.
// Must write the same bytes for the same input, so that rebuilding changes nothing.
//
//	image OUT.tar NAME PROGRAM [ARGUMENT...]
//
// PROGRAM becomes /bin/<its name>, and the entry point with the arguments.
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"runtime"
)

type object = map[string]any

func main() {
	if len(os.Args) < 4 {
		log.Fatal("usage: image OUT.tar NAME PROGRAM [ARGUMENT...]")
	}
	out, name, program, arguments := os.Args[1], os.Args[2], os.Args[3], os.Args[4:]
	inside := "bin/" + filepath.Base(program)

	var blobs []file
	blob := func(mediaType string, content []byte) object {
		hash := fmt.Sprintf("%x", sha256.Sum256(content))
		blobs = append(blobs, file{"blobs/sha256/" + hash, content, 0o644})
		return object{"mediaType": mediaType, "digest": "sha256:" + hash, "size": len(content)}
	}
	layer := blob("application/vnd.oci.image.layer.v1.tar", archive([]file{
		{"bin/", nil, 0o755}, {"etc/", nil, 0o755}, {"proc/", nil, 0o755}, {"sys/", nil, 0o755}, {"dev/", nil, 0o755}, {"tmp/", nil, 0o1777},
		{"etc/passwd", []byte("root:x:0:0:root:/:/bin/false\nnobody:x:65534:65534:nobody:/:/bin/false\n"), 0o644},
		{"etc/group", []byte("root:x:0:\nnobody:x:65534:\n"), 0o644},
		{inside, read(program), 0o755},
	}))
	platform := object{"os": "linux", "architecture": runtime.GOARCH}
	config := blob("application/vnd.oci.image.config.v1+json", encode(object{
		"os": platform["os"], "architecture": platform["architecture"],
		"config": object{"Entrypoint": append([]string{"/" + inside}, arguments...), "Env": []string{"PATH=/bin"}},
		"rootfs": object{"type": "layers", "diff_ids": []any{layer["digest"]}},
	}))
	manifest := blob("application/vnd.oci.image.manifest.v1+json", encode(object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": []object{layer},
	}))
	manifest["platform"] = platform
	manifest["annotations"] = object{"io.containerd.image.name": name}
	index := encode(object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []object{manifest},
	})
	files := append([]file{{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644}, {"index.json", index, 0o644}}, blobs...)
	if err := os.WriteFile(out, archive(files), 0o644); err != nil {
		log.Fatal(err)
	}
}

// file is an entry of an archive; a folder ends with a slash.
type file struct {
	path    string
	content []byte
	mode    int64
}

func archive(files []file) []byte {
	var out bytes.Buffer
	writer := tar.NewWriter(&out)
	for _, file := range files {
		header := &tar.Header{Name: file.path, Mode: file.mode, Size: int64(len(file.content)), Typeflag: tar.TypeReg}
		if file.path[len(file.path)-1] == '/' {
			header.Typeflag = tar.TypeDir
		}
		if err := writer.WriteHeader(header); err != nil {
			log.Fatal(err)
		}
		if _, err := writer.Write(file.content); err != nil {
			log.Fatal(err)
		}
	}
	if err := writer.Close(); err != nil {
		log.Fatal(err)
	}
	return out.Bytes()
}

func read(path string) []byte {
	content, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	return content
}

func encode(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		log.Fatal(err)
	}
	return text
}
