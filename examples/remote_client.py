"""A robot whose policy runs on a server: `leapp serve BUNDLE` there, this here. Neither torch nor an engine is loaded.

`pip install 'leapp[client]'`. The digest is what `leapp serve` prints; another bundle at that address is refused.

    python examples/remote_client.py http://127.0.0.1:8000 DIGEST
"""

from __future__ import annotations

import sys

import numpy as np

from leapp.client import Client


def main() -> None:
    url, digest = sys.argv[1:3]
    with Client(url, expect_digest=digest) as policy:
        for observation in np.random.default_rng(0).normal(size=(20, *policy.input_ports["policy/obs"].shape)):
            outputs = policy({"policy/obs": observation.astype(np.float32)})
            print(*(f"{name} {value.round(4).tolist()}" for name, value in outputs.items()))


if __name__ == "__main__":
    main()
