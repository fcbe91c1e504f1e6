"""The texts by which int8 is fitted, as the model to be loaded reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vectord.compute.calibration.sample import CalibrationTexts, Sample
from vectord.compute.calibration.texts import read_calibration_texts
from vectord.config import DeviceConfig
from vectord.schema import TextOptions

if TYPE_CHECKING:
    from vectord.text.tokenizer import TextEncoder

MAX_TOKENS = 256  # a text's; longer ones would tell no more, and cost attention over all of it


@dataclass(frozen=True, slots=True)
class Calibration:
    texts: CalibrationTexts
    folder: Path | None

    def sample(self, encoder: TextEncoder) -> Sample:
        """With the model's own prompt, specials included, cut."""
        encoded = encoder.encode(self.texts.texts, TextOptions(), truncate=True, field="calibration_file")
        ids = tuple(text.ids[:MAX_TOKENS] for text in encoded)
        return Sample(ids, self.texts.source, self.texts.digest, self.folder)


def calibration_texts(device: DeviceConfig) -> Calibration | None:
    """None unless int8 is asked for. Raises ConfigError for a file that is none, too large, or of too few texts."""
    if device.dtype != "int8":
        return None
    folder = None if device.calibration_folder is None else Path(device.calibration_folder).expanduser()
    return Calibration(read_calibration_texts(device.calibration_file), folder)
