"""Image files in, thumbnails out, as raw bytes both ways: no JSON, no base64."""

import io

from PIL import Image

import penstock as ps

ONE_PIXEL = bytes.fromhex("47494638396101000100800000ffffff00000021f90401000000002c00000000010001000002024401003b")


class Thumbnail(ps.Stage):
    """Takes any image file that Pillow reads, gives a PNG of at most `side` pixels on its longer side."""

    examples = [ONE_PIXEL]

    def setup(self, side: int) -> None:
        self.side = side

    def predict(self, file: bytes) -> bytes:
        try:
            with Image.open(io.BytesIO(file)) as image:
                small = image.convert("RGB")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):  # what Pillow's readers raise
            raise ps.InvalidItem("not an image that can be read") from None
        small.thumbnail((self.side, self.side))
        out = io.BytesIO()
        small.save(out, "PNG")
        return out.getvalue()


service = ps.Service(ps.stage(Thumbnail, setup={"side": 128}, workers=2), name="thumbnails")

if __name__ == "__main__":
    service.serve()
