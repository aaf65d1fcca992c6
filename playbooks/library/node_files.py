#!/usr/bin/python
"""Puts directories and small files in place, all in one call: each call of a module costs a node half a second.

What is there already and right is left alone, so a second run changes nothing; check mode says what would change.
"""

from __future__ import annotations

import grp
import os
import pwd
import tempfile
from collections.abc import Callable
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: node_files
short_description: Put directories and small files in place with their owners and modes
description:
  - Directories come first, in the order given; a file appears whole or not at all.
  - In check mode an owner that does not exist yet is one that an earlier task would have made.
author: Decamp
options:
  directories:
    description: Each with C(path), and C(mode), C(owner), C(group) where they matter.
    type: list
    elements: dict
    default: []
  files:
    description: Each with C(path) and C(content), and C(mode), C(owner), C(group) where they matter.
    type: list
    elements: dict
    default: []
"""

RETURN = r"""
changed_paths:
  description: What was made, written or given another owner or mode.
  returned: always
  type: list
  elements: str
"""


def make_directory(module: AnsibleModule, path: str) -> bool:
    if os.path.isdir(path):
        return False
    if not module.check_mode:
        os.makedirs(path, mode=0o755)
    return True


def write_file(module: AnsibleModule, path: str, content: bytes, mode: str) -> bool:
    """Writes a file unless it has this content; says whether it had not."""
    try:
        with open(path, "rb") as stream:
            if stream.read() == content:
                return False
    except FileNotFoundError:
        pass
    if not module.check_mode:
        descriptor, partial = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".decamp-")
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        os.chmod(partial, int(mode, 8))  # before it has its name, so that nobody reads what is for its owner alone
        os.replace(partial, path)
    return True


def exists(look_up: Callable[[str], object], name: str) -> bool:
    try:
        look_up(name)
    except KeyError:
        return False
    return True


def set_attributes(module: AnsibleModule, entry: dict[str, Any], mode: str) -> bool:
    wanted = {"path": entry["path"], "mode": mode}
    for name, look_up in (("owner", pwd.getpwnam), ("group", grp.getgrnam)):
        if entry.get(name) and not (module.check_mode and not exists(look_up, entry[name])):
            wanted[name] = entry[name]
    arguments = dict.fromkeys(("owner", "group", "seuser", "serole", "selevel", "setype", "attributes"))
    return bool(module.set_fs_attributes_if_different(module.load_file_common_arguments(arguments | wanted), False))


def main() -> None:
    entries = {"type": "list", "elements": "dict", "default": []}
    module = AnsibleModule(argument_spec={"directories": entries, "files": entries}, supports_check_mode=True)
    changed: list[str] = []
    for kind, default_mode in (("directories", "0755"), ("files", "0644")):
        for entry in module.params[kind]:
            path, mode = entry["path"], str(entry.get("mode") or default_mode)
            try:
                new = (
                    make_directory(module, path)
                    if kind == "directories"
                    else write_file(module, path, entry["content"].encode(), mode)
                )
            except OSError as error:
                module.fail_json(msg=f"{path}: cannot be written: {error.strerror}; run: ls -ld {path}")
            # Where check mode made nothing there is nothing to look at.
            set_now = not (module.check_mode and new) and set_attributes(module, entry, mode)
            if new or set_now:
                changed.append(path)
    module.exit_json(changed=bool(changed), changed_paths=changed)


if __name__ == "__main__":
    main()
