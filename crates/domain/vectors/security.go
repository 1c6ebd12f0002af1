// Prints random pods and what Kubernetes' pod security admission says about them at each level, one JSON object per line.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

func securities() {
	file, err := os.Create("security.jsonl")
	check(err)
	defer file.Close()
	out := bufio.NewWriter(file)
	defer out.Flush()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	check(err)
	for range 160 {
		pod := suspect()
		judge := func(level api.Level) string {
			latest := api.LevelVersion{Level: level, Version: api.LatestVersion()}
			result := policy.AggregateCheckResults(evaluator.EvaluatePod(latest, &pod.ObjectMeta, &pod.Spec))
			return result.ForbiddenDetail()
		}
		line, err := json.Marshal(map[string]any{
			"spec": pod.Spec, "annotations": pod.Annotations,
			"baseline": judge(api.LevelBaseline), "restricted": judge(api.LevelRestricted),
		})
		check(err)
		fmt.Fprintln(out, string(line))
	}
}

// One time in so many.
func one(in int) bool {
	return random.Intn(in) == 0
}

func to[T any](value T) *T {
	return &value
}

func suspect() *v1.Pod {
	pod := &v1.Pod{ObjectMeta: meta.ObjectMeta{Annotations: map[string]string{}}}
	hardened := one(2)
	for index := range 1 + random.Intn(2) {
		pod.Spec.Containers = append(pod.Spec.Containers, suspectContainer(fmt.Sprintf("c%d", index), hardened))
	}
	if one(3) {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, suspectContainer("i0", hardened))
	}
	if one(4) {
		common := v1.EphemeralContainerCommon(suspectContainer("e0", hardened))
		pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, v1.EphemeralContainer{EphemeralContainerCommon: common})
	}
	for index := range random.Intn(3) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, volume(fmt.Sprintf("v%d", index)))
	}
	if one(3) {
		key := "container.apparmor.security.beta.kubernetes.io/" + pick("c0", "i0", "gone")
		pod.Annotations[key] = pick("", "runtime/default", "localhost/x", "unconfined", "odd\tone")
	}
	if one(6) {
		pod.Annotations["container.apparmor.security.beta.kubernetes.io/c1"] = "unconfined"
	}
	pod.Spec.HostNetwork, pod.Spec.HostPID, pod.Spec.HostIPC = one(8), one(8), one(8)
	if one(3) {
		pod.Spec.HostUsers = to(one(3))
	}
	if one(5) {
		pod.Spec.OS = &v1.PodOS{Name: v1.OSName(pick("linux", "windows", "windows"))}
	}
	if hardened || one(3) {
		pod.Spec.SecurityContext = suspectPodContext(hardened)
	}
	return pod
}

func suspectPodContext(hardened bool) *v1.PodSecurityContext {
	context := &v1.PodSecurityContext{}
	if hardened {
		context.RunAsNonRoot = to(true)
		context.SeccompProfile = &v1.SeccompProfile{Type: "RuntimeDefault"}
	}
	if one(6) {
		context.RunAsNonRoot = to(one(2))
	}
	if one(6) {
		context.RunAsUser = to(int64(random.Intn(2)))
	}
	if one(6) {
		context.SeccompProfile = seccomp()
	}
	if one(6) {
		context.AppArmorProfile = appArmor()
	}
	if one(6) {
		context.SELinuxOptions = seLinux()
	}
	if one(8) {
		context.WindowsOptions = windows()
	}
	if one(4) {
		for range 1 + random.Intn(3) {
			context.Sysctls = append(context.Sysctls, v1.Sysctl{Name: pick(
				"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports",
				"net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout",
				"net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time",
				"net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem", "net.core.somaxconn", "kernel.msgmax"), Value: "1"})
		}
	}
	return context
}

func suspectContainer(name string, hardened bool) v1.Container {
	container := v1.Container{Name: name}
	if hardened || one(2) {
		container.SecurityContext = suspectContext(hardened)
	}
	for range random.Intn(3) {
		container.Ports = append(container.Ports, v1.ContainerPort{ContainerPort: 80})
		if one(4) {
			container.Ports[0].HostPort = int32(random.Intn(3) * 4040)
		}
	}
	for _, probe := range []**v1.Probe{&container.LivenessProbe, &container.ReadinessProbe, &container.StartupProbe} {
		if one(8) {
			http, tcp := targets()
			*probe = &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: http, TCPSocket: tcp}}
		}
	}
	if one(8) {
		container.Lifecycle = &v1.Lifecycle{}
		for _, handler := range []**v1.LifecycleHandler{&container.Lifecycle.PostStart, &container.Lifecycle.PreStop} {
			if one(2) {
				http, tcp := targets()
				*handler = &v1.LifecycleHandler{HTTPGet: http, TCPSocket: tcp}
			}
		}
	}
	return container
}

func targets() (http *v1.HTTPGetAction, tcp *v1.TCPSocketAction) {
	host := pick("", "", "10.0.0.1", "host.example")
	if one(2) {
		return &v1.HTTPGetAction{Host: host, Port: intstr.FromInt32(80)}, nil
	}
	return nil, &v1.TCPSocketAction{Host: host, Port: intstr.FromInt32(80)}
}

func suspectContext(hardened bool) *v1.SecurityContext {
	context := &v1.SecurityContext{}
	if hardened {
		context.AllowPrivilegeEscalation = to(false)
		context.Capabilities = &v1.Capabilities{Drop: []v1.Capability{"ALL"}}
	}
	if one(8) {
		context.Privileged = to(one(2))
	}
	if one(8) {
		context.AllowPrivilegeEscalation = to(one(2))
	}
	if one(4) {
		context.Capabilities = &v1.Capabilities{}
		for range random.Intn(3) {
			context.Capabilities.Drop = append(context.Capabilities.Drop, v1.Capability(pick("ALL", "ALL", "all", "NET_RAW")))
		}
		for range random.Intn(3) {
			context.Capabilities.Add = append(context.Capabilities.Add, v1.Capability(pick(
				"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_BIND_SERVICE",
				"SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT", "NET_RAW", "SYS_ADMIN", "CAP_CHOWN", "ALL")))
		}
	}
	if one(6) {
		context.ProcMount = to(v1.ProcMountType(pick("Default", "Unmasked", "")))
	}
	if one(6) {
		context.RunAsNonRoot = to(one(2))
	}
	if one(6) {
		context.RunAsUser = to(int64(random.Intn(2)))
	}
	if one(6) {
		context.SeccompProfile = seccomp()
	}
	if one(6) {
		context.AppArmorProfile = appArmor()
	}
	if one(6) {
		context.SELinuxOptions = seLinux()
	}
	if one(8) {
		context.WindowsOptions = windows()
	}
	return context
}

func seccomp() *v1.SeccompProfile {
	return &v1.SeccompProfile{Type: v1.SeccompProfileType(pick("RuntimeDefault", "Localhost", "Unconfined", ""))}
}

func appArmor() *v1.AppArmorProfile {
	return &v1.AppArmorProfile{Type: v1.AppArmorProfileType(pick("RuntimeDefault", "Localhost", "Unconfined", ""))}
}

func seLinux() *v1.SELinuxOptions {
	types := pick("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t", "spc_t")
	return &v1.SELinuxOptions{Type: types, User: pick("", "", "u"), Role: pick("", "", "r"), Level: pick("", "s0")}
}

func windows() *v1.WindowsSecurityContextOptions {
	return &v1.WindowsSecurityContextOptions{HostProcess: to(one(2))}
}

func volume(name string) v1.Volume {
	volume := v1.Volume{Name: name}
	sources := []v1.VolumeSource{
		{ConfigMap: &v1.ConfigMapVolumeSource{}}, {CSI: &v1.CSIVolumeSource{}}, {DownwardAPI: &v1.DownwardAPIVolumeSource{}},
		{EmptyDir: &v1.EmptyDirVolumeSource{}}, {Ephemeral: &v1.EphemeralVolumeSource{}}, {Image: &v1.ImageVolumeSource{}},
		{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}, {Projected: &v1.ProjectedVolumeSource{}},
		{Secret: &v1.SecretVolumeSource{}},
		{HostPath: &v1.HostPathVolumeSource{}}, {GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{}},
		{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{}}, {GitRepo: &v1.GitRepoVolumeSource{}}, {NFS: &v1.NFSVolumeSource{}},
		{ISCSI: &v1.ISCSIVolumeSource{}}, {Glusterfs: &v1.GlusterfsVolumeSource{}}, {RBD: &v1.RBDVolumeSource{}},
		{FlexVolume: &v1.FlexVolumeSource{}}, {Cinder: &v1.CinderVolumeSource{}}, {CephFS: &v1.CephFSVolumeSource{}},
		{Flocker: &v1.FlockerVolumeSource{}}, {FC: &v1.FCVolumeSource{}}, {AzureFile: &v1.AzureFileVolumeSource{}},
		{VsphereVolume: &v1.VsphereVirtualDiskVolumeSource{}}, {Quobyte: &v1.QuobyteVolumeSource{}}, {AzureDisk: &v1.AzureDiskVolumeSource{}},
		{PhotonPersistentDisk: &v1.PhotonPersistentDiskVolumeSource{}}, {PortworxVolume: &v1.PortworxVolumeSource{}},
		{ScaleIO: &v1.ScaleIOVolumeSource{}}, {StorageOS: &v1.StorageOSVolumeSource{}}, {},
	}
	index := random.Intn(len(sources))
	// Half of them are sources that every level allows, and host paths are common.
	if one(2) {
		index = random.Intn(10)
	}
	volume.VolumeSource = sources[index]
	return volume
}
