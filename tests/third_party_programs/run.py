"""One program, in this process: ``python -m tests.third_party_programs.run NAME FILE`` writes its
tensors to FILE."""

from __future__ import annotations

import sys

import torch

from tests.third_party_programs.programs import PROGRAMS

if __name__ == "__main__":
    name, file = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    results = PROGRAMS[name][1]()
    installed = sys.modules.get("runtime")
    if installed is not None:  # a process without the drop-in reads the file
        results = [
            installed.unwrap(t.detach().clone()) if isinstance(t, torch.Tensor) else t
            for t in results
        ]
    torch.save(list(results), file)
