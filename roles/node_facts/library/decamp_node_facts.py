#!/usr/bin/python
"""Reports what a node has: GPUs, NVSwitch, driver, CUDA, kernel, memory, disks, network.

Reads /sys, /proc and the answers of nvidia-smi, modinfo and nv-fabricmanager. It never looks at
the host's name, changes nothing, and holds back what varies from minute to minute, so that two
runs on an unchanged node give the same record.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: decamp_node_facts
short_description: Report a node's GPUs, driver, CUDA, kernel, memory, disks and network
description: [Returns one record as the fact C(decamp_node). Changes nothing.]
author: Decamp
options:
  tool_timeout_s: {type: int, default: 60, description: Seconds after which a tool counts as broken.}
  count_shared_gpus: {type: bool, default: false, description: Count GPUs that a container sees in /sys.}
"""

NVIDIA, MELLANOX = "0x10de", "0x15b3"
# PCI class codes: 0300 VGA controller, 0302 3D controller, 0680 other bridge.
GPU_CLASSES, BRIDGE_CLASS = ("0x0300", "0x0302"), "0x0680"
# HGX B200 has no NVSwitch on PCI. Its switches are managed through ConnectX-7 functions whose
# Vital Product Data says SW_MNG; an ordinary ConnectX-7 has the same device id without it
# (NVIDIA gpu-driver-container, ubuntu24.04/nvidia-driver, _assert_nvlink5_system, 2026).
NVLINK5_MARK = b"SW_MNG"
# What instance-store NVMe calls itself; EBS says "Amazon Elastic Block Store" (Amazon EC2 User
# Guide, "Identify instance store volumes", 2025).
INSTANCE_STORE_MODEL = "Amazon EC2 NVMe Instance Storage"
# By PCI device id: the name that the driver gives the GPU and the MiB that its nvidia-smi totals,
# so that much can be judged before there is a driver (names: The PCI ID Repository, 10de, 2026;
# memory: nvidia-smi's tables in NVIDIA's and clouds' documents). A GPU that is not here is judged
# when its driver answers.
KNOWN_GPUS = {
    "20b2": ("NVIDIA A100-SXM4-80GB", 81920),
    "2330": ("NVIDIA H100 80GB HBM3", 81559),
    "2335": ("NVIDIA H200", 143771),
    "26b9": ("NVIDIA L40S", 46068),
    "2901": ("NVIDIA B200", 183359),
    "2bb1": ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887),
    "2bb4": ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 97887),
    "2bb5": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887),
}
SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
TOOL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

Run = Callable[[list[str]], tuple[int, str]]


def run_tool(command: list[str], timeout_s: int = 60) -> tuple[int, str]:
    """Gives a tool's exit status and its output; 127 when it is not installed, 124 when it hangs."""
    path = os.environ.get("PATH", "") + ":" + TOOL_PATH
    tool = shutil.which(command[0], path=path)
    if tool is None:
        return 127, f"{command[0]}: not installed"
    try:
        done = subprocess.run(
            [tool, *command[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=timeout_s, check=False, env={"PATH": path, "LC_ALL": "C"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 124, f"{command[0]}: no answer within {timeout_s} s"
    return done.returncode, done.stdout.decode("utf-8", "replace")


def read_text(path: Path) -> str | None:
    """Gives a file's text without surrounding blanks, or None where it cannot be read."""
    try:
        return path.read_bytes().decode("utf-8", "replace").strip("\x00 \n\t")
    except OSError:
        return None


def list_names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir()) if directory.is_dir() else []


def find_pci_devices(root: Path) -> list[dict]:
    """Lists the NVIDIA and Mellanox functions on the PCI bus, in address order."""
    devices = []
    for address in list_names(root / "sys/bus/pci/devices"):
        path = root / "sys/bus/pci/devices" / address
        vendor = read_text(path / "vendor")
        if vendor in (NVIDIA, MELLANOX):
            device, class_code = read_text(path / "device") or "", read_text(path / "class") or ""
            devices.append({"address": address, "vendor": vendor, "device": device, "class": class_code[:6]})
    return devices


def find_nvswitch(root: Path, pci: list[dict]) -> dict:
    """Says whether this machine manages an NVSwitch, and how that was seen."""
    bridges = [d["address"] for d in pci if d["vendor"] == NVIDIA and d["class"] == BRIDGE_CLASS]
    managers = []
    for device in (d for d in pci if d["vendor"] == MELLANOX):
        try:
            vpd = (root / "sys/bus/pci/devices" / device["address"] / "vpd").read_bytes()
        except OSError:
            continue  # no VPD, or not readable: an ordinary network card
        if NVLINK5_MARK in vpd:
            managers.append(device["address"])
    driver_sees = list_names(root / "proc/driver/nvidia-nvswitch/devices")
    return {
        "present": bool(bridges or managers or driver_sees),
        "nvlink5": bool(managers),
        "devices": sorted(set(bridges + managers) or set(driver_sees)),
    }


def parse_smi(text: str) -> dict:
    """Reads `nvidia-smi -q`: an indented outline of `key : value` lines, one block for each GPU."""
    report: dict = {"driver": None, "cuda": None, "gpus": {}}
    gpu: dict | None = None
    trail: list[tuple[int, str]] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("="):
            continue
        start = re.match(r"GPU ([0-9A-Fa-f]{4,8}):([0-9A-Fa-f:.]+)\s*$", line)
        if start:
            # nvidia-smi writes the PCI domain with eight digits, the kernel with four.
            address = f"{int(start[1], 16):04x}:{start[2].lower()}"
            gpu = report["gpus"].setdefault(address, {})
            trail = []
            continue
        indent = len(line) - len(line.lstrip())
        key, colon, value = (part.strip() for part in line.partition(" : "))
        while trail and trail[-1][0] >= indent:
            trail.pop()
        if not colon:
            trail.append((indent, key))
            continue
        name = "/".join([part for _, part in trail] + [key])
        if gpu is None:
            if name in ("Driver Version", "CUDA Version"):
                report[name.split()[0].lower()] = value
        else:
            gpu[name] = value
    return report


def find_gpus(pci: list[dict], smi: dict) -> list[dict]:
    """Lists the NVIDIA GPUs on the bus; what only the driver knows is null until it answers."""
    gpus = []
    for device in pci:
        if device["vendor"] != NVIDIA or device["class"] not in GPU_CLASSES:
            continue
        told = smi["gpus"].get(device["address"], {})
        memory = re.match(r"(\d+) MiB", told.get("FB Memory Usage/Total", ""))
        memory_bytes = int(memory[1]) << 20 if memory else None
        expected_name, expected_mib = KNOWN_GPUS.get(device["device"][2:], (None, 0))
        gpus.append({
            "pci_address": device["address"],
            "pci_id": f"{device['vendor'][2:]}:{device['device'][2:]}",
            "name": told.get("Product Name"),
            "uuid": told.get("GPU UUID"),
            "memory_bytes": memory_bytes,
            # By the driver, else by the PCI id.
            "known_name": told.get("Product Name") or expected_name,
            "known_memory_bytes": memory_bytes or (expected_mib << 20) or None,
            "fabric_state": told.get("Fabric/State"),
            "fabric_status": told.get("Fabric/Status"),
        })  # fmt: skip
    return gpus


def find_driver(root: Path, run: Run) -> tuple[dict, dict]:
    """Compares the driver the kernel has loaded with the one on disk; also gives nvidia-smi's report."""
    loaded_text = read_text(root / "proc/driver/nvidia/version") or ""
    loaded = re.search(r"Kernel Module\b.*?\s(\d+\.\d+(?:\.\d+)?)\s", loaded_text + " ")
    fields = {}
    for field in ("version", "license"):
        status, output = run(["modinfo", "-F", field, "nvidia"])
        fields[field] = output.strip().splitlines()[0] if status == 0 and output.strip() else None
    # The open modules are "Dual MIT/GPL"; the proprietary one is "NVIDIA".
    flavour = None if fields["license"] is None else "open" if "GPL" in fields["license"] else "proprietary"
    status, output = run(["nvidia-smi", "-q"])
    smi = parse_smi(output if status == 0 else "")
    return {
        "loaded": loaded[1] if loaded else None,
        "loaded_flavour": ("open" if "Open Kernel Module" in loaded_text else "proprietary") if loaded else None,
        "installed": fields["version"],
        "installed_flavour": flavour,
        # A .run installation leaves its own remover behind; packages do not.
        "installed_by": ("runfile" if (root / "usr/bin/nvidia-uninstall").exists() else "package") if flavour else None,
        "answers": status == 0,
        "answer": None if status == 0 else " ".join(output.split())[:300],
        "nouveau_loaded": (root / "sys/module/nouveau").exists(),
    }, smi  # fmt: skip


def find_cuda(root: Path, smi: dict) -> dict:
    toolkits = []
    for name in list_names(root / "usr/local"):
        path = root / "usr/local" / name
        if not re.fullmatch(r"cuda-\d+(\.\d+)?", name) or not (path / "bin/nvcc").exists():
            continue
        try:
            version = json.loads((path / "version.json").read_bytes())["cuda"]["version"]
        except (OSError, ValueError, KeyError, TypeError):
            version = name.partition("-")[2]
        toolkits.append({"version": version, "path": f"/usr/local/{name}"})
    return {"driver_supports": smi["cuda"], "toolkits": toolkits}


def find_fabric_software(root: Path, run: Run) -> dict:
    _, output = run(["nv-fabricmanager", "--version"])
    manager = re.search(r"version is\s*:\s*(\d[\d.]*)", output)
    status, nvlsm = run(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", "nvlsm"])
    return {
        "manager_version": manager[1] if manager else None,
        "nvlsm_version": nvlsm.split()[1] if status == 0 and nvlsm.startswith("installed ") else None,
        "ib_umad_loaded": (root / "sys/module/ib_umad").exists(),
    }


def find_disks(root: Path) -> list[dict]:
    """Lists whole disks with where they are mounted, also through partitions, md and device-mapper."""
    mounts: dict[str, list[str]] = {}
    for line in (read_text(root / "proc/self/mounts") or "").splitlines():
        source, target = line.split()[:2]
        mounts.setdefault(source, []).append(target)
    disks = []
    for name in list_names(root / "sys/block"):
        size_bytes = int(read_text(root / "sys/block" / name / "size") or 0) * 512
        if re.match(r"(loop|ram|zram|sr|fd|dm-|md)\d*", name) or size_bytes == 0:
            continue
        stack, sources = [name], set()
        while stack:
            node = stack.pop()
            path = root / "sys/class/block" / node
            sources.add(f"/dev/{node}")
            if mapped := read_text(path / "dm/name"):
                sources.add(f"/dev/mapper/{mapped}")
            stack += [child for child in list_names(path) if (path / child / "partition").exists()]
            stack += list_names(path / "holders")
        model = read_text(root / "sys/block" / name / "device/model")
        disks.append({
            "path": f"/dev/{name}",
            "size_bytes": size_bytes,
            "model": model,
            "rotational": read_text(root / "sys/block" / name / "queue/rotational") == "1",
            "instance_store": (model or "").startswith(INSTANCE_STORE_MODEL),
            "mounted_at": sorted({target for source in sources for target in mounts.get(source, [])}),
        })  # fmt: skip
    return disks


def find_network(root: Path) -> dict:
    """Lists hardware interfaces; bridges and container links come and go and are left out."""
    interfaces = []
    for name in list_names(root / "sys/class/net"):
        path = root / "sys/class/net" / name
        if not (path / "device").exists():
            continue
        speed = read_text(path / "speed") or ""
        driver = path / "device/driver"
        interfaces.append({
            "name": name,
            "driver": os.path.basename(os.path.realpath(driver)) if driver.exists() else None,
            "speed_mbps": int(speed) if speed.isdigit() else None,
            "mtu": int(read_text(path / "mtu") or 0),
        })  # fmt: skip
    return {"interfaces": interfaces, "rdma_devices": list_names(root / "sys/class/infiniband")}


def find_container_manager(root: Path) -> str | None:
    """Names what runs this container; None on a machine with a kernel of its own."""
    for mark in ("run/systemd/container", "run/host/container-manager"):
        if told := read_text(root / mark):
            return told
    return "docker" if (root / ".dockerenv").exists() else None


def find_machine(root: Path) -> dict:
    release = dict(
        line.partition("=")[::2] for line in (read_text(root / "etc/os-release") or "").splitlines() if "=" in line
    )
    cpuinfo = read_text(root / "proc/cpuinfo") or ""
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.M)
    memory = re.search(r"^MemTotal:\s+(\d+) kB", read_text(root / "proc/meminfo") or "", re.M)
    try:
        secure_boot = (root / SECURE_BOOT).read_bytes()[-1:] == b"\x01"
    except OSError:
        secure_boot = False
    return {
        "os": {key: release.get(key.upper(), "").strip('"') for key in ("id", "version_id", "pretty_name")},
        "kernel": read_text(root / "proc/sys/kernel/osrelease"),
        "architecture": os.uname().machine,
        "hardware": {key: read_text(root / "sys/class/dmi/id" / key) for key in ("sys_vendor", "product_name")},
        "secure_boot": secure_boot,
        "cpu": {"model": model[1] if model else None, "logical": len(re.findall(r"^processor\s*:", cpuinfo, re.M))},
        "memory_bytes": int(memory[1]) * 1024 if memory else None,
    }


def collect(root: Path, run: Run, count_shared_gpus: bool = False) -> dict:
    """Gives the whole record; `root` is / on a node, and any tree that looks like one in a test."""
    container = find_container_manager(root)
    # A container sees the PCI bus of the machine it runs on, whether or not any of it is the container's.
    pci = find_pci_devices(root) if container is None or count_shared_gpus else []
    driver, smi = find_driver(root, run)
    return {
        "record_version": 1,
        "container": container,
        **find_machine(root),
        "gpus": find_gpus(pci, smi),
        "nvswitch": find_nvswitch(root, pci),
        "driver": driver,
        "cuda": find_cuda(root, smi),
        "fabric": find_fabric_software(root, run),
        "disks": find_disks(root),
        "network": find_network(root),
    }


def main() -> None:
    options = {
        "tool_timeout_s": {"type": "int", "default": 60},
        "count_shared_gpus": {"type": "bool", "default": False},
    }
    module = AnsibleModule(argument_spec=options, supports_check_mode=True)
    timeout_s, count_shared_gpus = module.params["tool_timeout_s"], module.params["count_shared_gpus"]
    record = collect(Path("/"), lambda command: run_tool(command, timeout_s), count_shared_gpus)
    module.exit_json(changed=False, ansible_facts={"decamp_node": record})


if __name__ == "__main__":
    main()
