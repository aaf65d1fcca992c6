"""Makes a model of one tensor: make_tiny_model.py DIRECTORY SEED. The role model runs this on a test's host."""

import json
import random
import struct
import sys
from pathlib import Path

header = json.dumps({"w": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}).encode()
content = struct.pack("<Q", len(header)) + header + random.Random(int(sys.argv[2])).randbytes(64)
Path(sys.argv[1], "m.safetensors").write_bytes(content)
