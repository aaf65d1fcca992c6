"""What GPU machines show on their PCI bus and in `nvidia-smi -q`, as files that a booted host can be given.

PCI ids are those of the PCI ID repository (2901 GB100 [B200], 2bb5 GB202GL [RTX PRO 6000 Blackwell Server Edition],
15b3:1021 ConnectX-7). The report follows NVIDIA's `nvidia-smi -q` of driver 580 and newer, cut down to a few fields of
each block, the ones around what is read included.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

# A PCI Vital Product Data block is binary: a name, then two-letter keywords with lengths.
ORDINARY_VPD = b"\x82\x1d\x00NVIDIA ConnectX-7 Ethernet\x90\x20\x00PN\x06MCX755SN\x04ABCDRV\x01\x00x"
SWITCH_VPD = b"\x82\x14\x00Nvidia ConnectX-7 mez\x90\x30\x00PN\x05692-9SN\x04WXYZV3\x0bSMDL=SW_MNGRV\x01\x00x"


@dataclass(frozen=True)
class Function:
    """One function on the PCI bus."""

    address: str
    vendor: str
    device: str
    class_code: str
    vpd: bytes = b""


@dataclass(frozen=True)
class Machine:
    """A machine by what it has; nothing in it names the machine."""

    functions: list[Function] = field(default_factory=list)
    product: str = ""
    memory_mib: int = 0
    has_fabric: bool = False

    @property
    def gpus(self) -> list[Function]:
        return [f for f in self.functions if f.vendor == "10de" and f.class_code in ("030000", "030200")]

    def write_pci(self, root: Path) -> None:
        """Writes pci/devices under `root` the way the kernel's /sys/bus shows it."""
        (root / "pci/devices").mkdir(parents=True)
        for function in self.functions:
            path = root / "pci/devices" / function.address
            path.mkdir()
            for name, value in (
                ("vendor", function.vendor),
                ("device", function.device),
                ("class", function.class_code),
            ):
                (path / name).write_text(f"0x{value}\n")
            if function.vpd:
                (path / "vpd").write_bytes(function.vpd)

    def format_smi(self, driver: str, cuda: str, fabric_state: str = "", fabric_status: str = "") -> str:
        """Gives the `nvidia-smi -q` of this machine."""
        state = fabric_state or ("Completed" if self.has_fabric else "N/A")
        status = fabric_status or ("Success" if state == "Completed" else "N/A")
        blocks = [
            SMI_GPU.format(
                address=f"0000{function.address}".upper(),
                product=self.product,
                memory_mib=self.memory_mib,
                number=number,
                state=state,
                status=status,
            )
            for number, function in enumerate(self.gpus)
        ]
        return SMI_HEAD.format(driver=driver, cuda=cuda, count=len(self.gpus)) + "".join(blocks)


SMI_HEAD = """
==============NVSMI LOG==============

Timestamp                                 : Mon Nov 30 17:00:00 2026
Driver Version                            : {driver}
CUDA Version                              : {cuda}

Attached GPUs                             : {count}
"""

SMI_GPU = """GPU {address}
    Product Name                          : {product}
    Product Brand                         : NVIDIA
    Product Architecture                  : Blackwell
    Display Attached                      : No
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    GPU UUID                              : GPU-6ab1f6c5-0000-4000-8000-00000000000{number}
    GPU Virtualization Mode
        Virtualization Mode               : None
    PCI
        Bus                               : 0x1B
        GPU Link Info
            PCIe Generation
                Max                       : 5
    Fabric
        State                             : {state}
        Status                            : {status}
        CliqueId                          : 0
        ClusterUUID                       : 00000000-0000-0000-0000-000000000000
        Health
            Summary                       : N/A
            Bandwidth                     : N/A
    FB Memory Usage
        Total                             : {memory_mib} MiB
        Reserved                          : 620 MiB
        Used                              : 0 MiB
    BAR1 Memory Usage
        Total                             : 262144 MiB
    Compute Mode                          : Default
    Processes                             : None

"""

HOST_BRIDGE = Function("0000:00:00.0", "8086", "0d57", "060000")

B200_X8 = Machine(
    functions=[
        HOST_BRIDGE,
        *(
            Function(f"0000:{bus}:00.0", "10de", "2901", "030200")
            for bus in ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
        ),
        *(Function(f"0000:05:00.{n}", "15b3", "1021", "020700", SWITCH_VPD) for n in range(2)),
        Function("0000:29:00.0", "15b3", "1021", "020700", ORDINARY_VPD),
    ],
    product="NVIDIA B200",
    memory_mib=183359,
    has_fabric=True,
)

RTX_PRO_6000_X4 = Machine(
    functions=[
        HOST_BRIDGE,
        *(Function(f"0000:{bus}:00.0", "10de", "2bb5", "030200") for bus in ("21", "41", "a1", "c1")),
        # The GPU's sound function, and a network card of the kind that manages switches elsewhere.
        Function("0000:21:00.1", "10de", "22e8", "040300"),
        Function("0000:29:00.0", "15b3", "1021", "020000", ORDINARY_VPD),
    ],
    product="NVIDIA RTX PRO 6000 Blackwell Server Edition",
    memory_mib=97887,
)

# NVLink 4: the switches themselves are on the bus.
H100_X8 = Machine(
    functions=[
        *(
            Function(f"0000:{bus}:00.0", "10de", "2330", "030200")
            for bus in ("18", "2a", "3a", "5d", "9a", "ab", "ba", "db")
        ),
        *(Function(f"0000:{bus}:00.0", "10de", "22a3", "068000") for bus in ("05", "06", "07", "08")),
    ],
    product="NVIDIA H100 80GB HBM3",
    memory_mib=81559,
    has_fabric=True,
)

NO_GPU = Machine(functions=[HOST_BRIDGE, Function("0000:29:00.0", "15b3", "1021", "020000", ORDINARY_VPD)])
