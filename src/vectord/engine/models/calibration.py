"""The texts on which int8 is calibrated, as the model reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vectord.compute.calibration.sample import CalibrationTexts, Sample
from vectord.compute.calibration.texts import read_calibration_texts
from vectord.config import DeviceConfig
from vectord.errors import VectordError
from vectord.schema import TextOptions
from vectord.text.sequence import Encoder, ReadRequest

MAX_TOKENS = 256  # of a text; longer ones add cost and no information


@dataclass(frozen=True, slots=True)
class Calibration:
    texts: CalibrationTexts
    folder: Path | None

    def sample(self, encoder: Encoder) -> Sample:
        """The texts' tokens, with the model's own prompt and special tokens, truncated."""
        try:
            sequences = encoder.read(ReadRequest(inputs=self.texts.texts, options=TextOptions(), truncate=True))
        except VectordError as error:
            raise error.at(field="calibration_file") from error
        ids = tuple(sequence.ids[:MAX_TOKENS] for sequence in sequences)
        return Sample(ids, self.texts.source, self.texts.digest, self.folder)


def calibration_texts(device: DeviceConfig) -> Calibration | None:
    """None unless int8 is asked for. Raises ConfigError for a file that is none, too large, or of too few texts."""
    if device.dtype != "int8":
        return None
    folder = None if device.calibration_folder is None else Path(device.calibration_folder).expanduser()
    return Calibration(read_calibration_texts(device.calibration_file), folder)
