"""Two processes train one model of examples/affairs, and the first of them exports it.

    torchrun --standalone --nproc-per-node 2 two_trainers.py ARTIFACT RECORD

Each writes its parameters and its own answers to the held-out rows into RECORD, as `RANK.npy` and `answers-RANK.npy`;
the first also writes `rows.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import distributed
from torch.nn.functional import binary_cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "affairs"))

from train_torch import Affairs

import penstock as ps
from data import survey
from penstock import features as f


def main(artifact: str, record: Path) -> None:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(rank)  # each begins elsewhere: what they end with in common is what was exchanged
    rows, held_out = survey()
    features = ps.Features(
        {
            "age": f.Numeric(scale="standard", fill_value=f.MEAN),
            "educ": f.Hashed(buckets=4, one_hot=True, fill_value=f.EMPTY),
            "occupation": f.Vocabulary(max_size=50, fill_value="none"),
        },
        concat_into="x",
    ).fit(rows)
    model = DistributedDataParallel(Affairs(features.sizes["occupation"]))
    dataset = features.torch_dataset(rows, label="affair")
    batches = DataLoader(dataset, batch_size=64, sampler=DistributedSampler(dataset))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, affair in batches:
        optimizer.zero_grad()
        binary_cross_entropy(model(**inputs)["probability"], affair).backward()
        optimizer.step()

    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    np.save(record / f"{rank}.npy", flat.numpy(), allow_pickle=False)
    with torch.no_grad():
        asked = {name: torch.from_numpy(array) for name, array in features.encode(held_out).items()}
        np.save(record / f"answers-{rank}.npy", model.module(**asked)["probability"].numpy(), allow_pickle=False)
    if rank == 0:
        (record / "rows.json").write_text(json.dumps(features.to_rows(held_out), allow_nan=False))
        ps.export.save(
            model,
            artifact,
            name="affairs",
            features=features,
            reference_rows=held_out[:16],
            validation_data=held_out[16:],
        )
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
