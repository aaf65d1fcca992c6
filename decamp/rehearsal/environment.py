"""Everything the rehearsal's programs need to find its state, store and keys, in one mapping of variables."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from decamp.rehearsal.credentials import FILE_NAME, ensure_credentials, read_variables
from decamp.stack import CHECKOUT

STACK = "rehearsal"
DIRECTORY = CHECKOUT / ".rehearsal"


def make_environment(directory: Path = DIRECTORY) -> dict[str, str]:
    """Returns the rehearsal's variables, making the directory, its keys and the place of its state on first use.

    Pulumi keeps everything of its own below the directory as well; a login to another backend stays as it is.
    """
    state = directory / "state"
    state.mkdir(parents=True, exist_ok=True)
    ensure_credentials(directory)
    return {
        **{name: value for name, value in read_variables(directory / FILE_NAME).items() if value},
        "AWS_EC2_METADATA_DISABLED": "true",
        "DECAMP_STACK": STACK,
        "PULUMI_BACKEND_URL": f"file://{state}",
        "PULUMI_CONFIG_PASSPHRASE": "",  # nothing in the state is secret; see Pulumi.rehearsal.yaml
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PULUMI_HOME": str(directory / "pulumi"),
        "PULUMI_SKIP_UPDATE_CHECK": "1",
        "PULUMI_STACK": STACK,
    }


def make_exports(directory: Path = DIRECTORY) -> list[str]:
    """Returns shell lines that give a shell the rehearsal's variables, and this environment's commands first."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in make_environment(directory).items()]
    return [*exports, f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"]
