"""Train in processes that step together, publish once: see the README for how `torchrun` starts it.

They train as they would without a run, so its plan is empty.  The save task alone is shared: all get the version.
Where one dies, torchrun starts all again, and they go on from the newest checkpoint.
"""

import sys
from typing import Any

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, DistributedSampler
from train_torch import SPEC, Affairs

import penstock as ps
from data import survey

rows, held_out = survey()
features = SPEC.fit(rows)
run = ps.training.Run(sys.argv[1], publish_to=sys.argv[2], lease=5.0)


def train(model: nn.Module) -> None:
    """Train for five epochs, from where the newest checkpoint ends."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    begin, newest = 0, run.latest_checkpoint()
    if newest is not None:
        state = torch.load(newest / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["epoch"] + 1
    dataset = features.torch_dataset(rows, label="affair")
    sampler = DistributedSampler(dataset)
    for epoch in range(begin, 5):
        sampler.set_epoch(epoch)
        for inputs, affair in DataLoader(dataset, batch_size=64, sampler=sampler):
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy(model(**inputs)["probability"], affair).backward()
            optimizer.step()
        if distributed.get_rank() == 0:  # all of them have the same parameters
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            run.checkpoint(lambda folder, state=state: torch.save(state, folder / "state.pt"))


def save() -> dict[str, Any]:
    """The arguments of `ps.export.save`, by whichever process gets the save task."""
    checks = {"reference_rows": held_out[:16], "validation_data": held_out[16:]}
    return {"model": model, "features": features, "name": "affairs", **checks}


if __name__ == "__main__":
    run.plan()
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Affairs(features.sizes["occupation"]))
    train(model)
    print("version", run.work(save=save))
    distributed.destroy_process_group()
