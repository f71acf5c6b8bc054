"""Items and results as pydantic models: a parcel in, its price out."""

from typing import Literal

from pydantic import BaseModel, Field

import penstock as ps


class Side(BaseModel):
    centimetres: float = Field(gt=0, le=200)


class Parcel(BaseModel):
    kilograms: float = Field(gt=0, le=30)
    sides: list[Side] = Field(min_length=3, max_length=3)
    speed: Literal["slow", "fast"] = "slow"


class Price(BaseModel):
    cents: int
    pays_for: Literal["weight", "volume"]


class Quote(ps.Stage):
    examples = [Parcel(kilograms=2, sides=[Side(centimetres=30), Side(centimetres=20), Side(centimetres=10)])]

    def predict(self, parcel: Parcel) -> Price:
        a, b, c = (side.centimetres for side in parcel.sides)
        by_volume = a * b * c / 5000  # kilograms a parcel of this size is taken for
        per_kilogram = 150 if parcel.speed == "slow" else 400
        return Price(
            cents=round(max(parcel.kilograms, by_volume) * per_kilogram),
            pays_for="weight" if parcel.kilograms >= by_volume else "volume",
        )


service = ps.Service(ps.stage(Quote), name="parcels")

if __name__ == "__main__":
    service.serve()
