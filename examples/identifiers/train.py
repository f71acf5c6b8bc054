"""Train one model in as many processes as you start, publish once: `python train.py runs/first models/identifiers`."""

import functools
import sys
from typing import Any

import torch
from model import BUCKETS, Packages
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import penstock as ps
from data import LONGEST, files
from penstock import embeddings as emb
from penstock import features as f

PARTS, EPOCHS = 24, 4
torch.manual_seed(0)
torch.set_num_threads(1)  # the threads of many processes would wait for each other
learnt, held_out = files(every=int(sys.argv[3]) if len(sys.argv) > 3 else 1)
features = ps.Features({"identifiers": f.Hashed(buckets=BUCKETS, max_length=LONGEST)}).fit(learnt)
run = ps.training.Run(sys.argv[1], publish_to=sys.argv[2], lease=5.0)
with emb.placeholders():
    model = Packages()
rows = emb.offload(model, f"shared:{run.folder}/rows", optimizer=emb.Adagrad(lr=0.1), dense="shared")
own = torch.optim.Adam(model.parameters(), lr=0.005)
part = functools.cache(lambda place: features.torch_dataset(learnt[place::PARTS], label="package"))


def train(task: list[int]) -> None:
    """Pass over one part; `task` is the epoch and the part."""
    for inputs, package in DataLoader(part(task[1]), batch_size=32, shuffle=True):
        own.zero_grad()
        rows.zero_grad()
        cross_entropy(model(**inputs)["scores"], package).backward()
        own.step()
        rows.step()


@torch.no_grad()
def accuracy(_: None) -> float:
    """The share of held-out files whose package has the highest score."""
    rows.refresh()
    dataset = features.torch_dataset(held_out, label="package")
    inputs, package = next(iter(DataLoader(dataset, batch_size=len(dataset))))
    return float((model(**inputs)["scores"].argmax(dim=1) == package).double().mean())


def save() -> dict[str, Any]:
    """The arguments of `ps.export.save`, by whichever process gets the save task: it may have trained nothing."""
    rest = {"features": features, "reference_rows": held_out[:16], "validation_data": held_out[16:]}
    return {"model": rows, "name": "identifiers", "outside": ["bag"], **rest}


if __name__ == "__main__":
    places = range(min(PARTS, len(learnt)))
    run.plan(train=[[epoch, place] for epoch in range(EPOCHS) for place in places], evaluate=[None])
    version = run.work(train=train, evaluate=accuracy, save=save)
    print(f"version {version}, accuracy {run.results('evaluate')[0]:.2f}")
