"""What a worker makes of the errors of PyTorch and TensorFlow: their own classes, on a CPU."""

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
torch = pytest.importorskip("torch")
import tensorflow as tf  # noqa: E402

import penstock as ps  # noqa: E402
from penstock.worker.device_errors import device_is_lost, ran_out_of_memory  # noqa: E402


class Accelerator(torch.nn.Module):
    """Doubles where there is memory for `fits` rows at once, and fails for good after a negative number."""

    def __init__(self, fits):
        super().__init__()
        self.fits = fits
        self.lost = False

    def forward(self, rows):
        self.lost = self.lost or bool((rows < 0).any())
        if self.lost:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        if len(rows) > self.fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return 2 * rows


class Double(ps.Stage):
    batch = ps.Batch(max_size=16)

    def setup(self):
        self.model = Accelerator(fits=3)

    def predict(self, xs: list[float]) -> list[float]:
        return self.model(torch.tensor(xs)).tolist()


async def test_the_classes_of_torch_cost_no_mate_its_result():
    async with ps.Service(Double) as service:
        assert await service.predict_many([float(x) for x in range(16)]) == [2.0 * x for x in range(16)]
        found = await service.predict_many([1.0, -1.0, 2.0, 3.0], return_exceptions=True)
        assert (found[0], found[2:]) == (2.0, [4.0, 6.0])
        assert found[1].is_a(torch.AcceleratorError)
        counters = service.engine.stages[0].counters
        assert (counters.shortages, counters.devices_lost) == (1, 2)


def test_what_the_frameworks_raise_for_want_of_memory_is_known():
    with pytest.raises(RuntimeError) as caught:  # of the host, which is no class of its own
        torch.empty(1 << 48)
    assert ran_out_of_memory(caught.value)
    error = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[1,2]")
    assert ran_out_of_memory(error)
    assert not ran_out_of_memory(tf.errors.InternalError(None, None, "OOM"))
    lost = tf.errors.InternalError(None, None, "CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure")
    assert device_is_lost(lost)
    assert not device_is_lost(tf.errors.InternalError(None, None, "no words of CUDA"))
