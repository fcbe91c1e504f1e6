"""Inputs with images as sequences of a network of texts: texts and images in the order given, as one text.

Each image becomes words with a token for each row that the network of images makes of it (spec.ImageText). Those rows
have the type 1; `Texts.images` are the images' own sequences, whose vectors take their place. tokenizer.py calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import groupby
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace
from tokenizers import Encoding

from vectord.checkpoints.spec import ImageProcessor, ImageText
from vectord.errors import ImagesTooLong, InvalidField, ModelUnavailable
from vectord.schema import Float32, ImageFacts, Input, Media, TextLength
from vectord.text.images import ImageEncoder, ImageViews
from vectord.text.options import limit_of, require_specials
from vectord.text.plain import PlainTokenizer, Source, cut_source
from vectord.text.sequence import ReadRequest, Texts, TokenSequence
from vectord.text.truncation import Limit


def has_image(value: object) -> bool:
    """Whether an input is an image, or has one among its parts."""
    return isinstance(value, Media) or (isinstance(value, (list, tuple)) and any(isinstance(x, Media) for x in value))


class _Item(msgspec.Struct):
    """One input as a text, with the sequences of its images."""

    text: str
    own: list[tuple[int, int]] = []  # the characters of the client's texts, which may be cut
    images: list[Texts] = []
    boxes: list[Float32] = []
    characters_cut: int = 0
    facts: list[ImageFacts] = []

    @property
    def digest(self) -> bytes:
        return blake2b(b"".join(one.digests[0] for one in self.images), digest_size=16).digest()

    def add(self, text: str) -> tuple[int, int]:
        start, self.text = len(self.text), self.text + text
        return start, len(self.text)


class InterleavedEncoder:
    """The inputs with images of one model."""

    def __init__(
        self, plain: PlainTokenizer, form: ImageText, processor: ImageProcessor, max_tokens: int, path: Path
    ) -> None:
        """path: the tokenizer's, for messages. Raises ModelUnavailable without the token of images."""
        token = plain.tokenizer.token_to_id(form.token)
        if token is None:
            raise ModelUnavailable(f"{path}: has no token {form.token[:40]!r}, which stands for the rows of images")
        self._token: int = token
        self._row_id = token if token < plain.vocab_size else 0  # the network may have no word vector for it
        self._plain, self._form, self._max_tokens = plain, form, max_tokens
        self._images = ImageEncoder(processor)

    def read(self, request: ReadRequest, indexes: Sequence[int], prompt: str) -> Texts:
        """The sequence of each input, with those of its images. Too many tokens are cut from its texts, not its images.

        Raises InvalidField for an image that is not readable, ImagesTooLong for images that do not fit, and ModelCannot
        without Pillow.
        """
        require_specials(request.options, "images")
        if self._form.alone:  # a kind of texts, and its prompt, are not for images
            prompt = request.options.prompt or ""
        framed = self._form.framed is not False
        limit = limit_of(request, self._max_tokens, sum(self._plain.frame.specials) + 1)
        items = [self._item(request.inputs[i], limit, i, prompt) for i in indexes]
        sources = [Source(i, item.text) for i, item in zip(indexes, items, strict=True)]
        sequences, boxes = [], []
        encodings = self._plain.encodings(sources, specials=framed, offsets=True)
        for source, item, encoding in zip(sources, items, encodings, strict=True):
            sequence, box = self._sequence(item, encoding, limit, source.index or 0)
            sequences.append(sequence)
            boxes.append(box)
        return replace(
            Texts.of(sequences),
            digests=[item.digest for item in items],
            boxes=boxes,
            images=Texts.join([one for item in items for one in item.images]),
        )

    def _item(self, value: Input, limit: Limit, index: int, prompt: str) -> _Item:
        parts = [value] if isinstance(value, Media) else value
        if self._form.alone and (prompt or len(parts) > 1):
            template = "{field} has an image and {other}; this model embeds images alone."
            raise InvalidField(template, index=index, other="a prompt" if prompt else "another part")
        item = _Item(prompt)
        for part in parts:
            if isinstance(part, Media):
                image, rows = self._images.read_image(part, index)
                item.images.append(rows)
                item.boxes.append(image.boxes)
                refuse_more_rows(sum(map(len, item.boxes)), limit, index)
                item.facts += rows.lengths[0].images
                item.add(self._words(image))
            elif isinstance(part, str):
                source = cut_source(part, limit, index)
                item.characters_cut += source.characters_cut
                item.own.append(item.add(source.text))
            else:
                raise InvalidField("{field} has token ids next to an image; send them as a text.", index=index)
        return item

    def _words(self, image: ImageViews) -> str:
        """The image as words and tokens."""
        form = self._form
        height, width = image.blocks
        rows = form.token * height * width
        tiles = [view for view in image.views if view.row]
        words = form.view.replace("{rows}", rows)
        if tiles:
            lines = groupby(tiles, key=lambda view: view.row)
            tile = form.tile.replace("{rows}", rows)
            written = ("".join(tile.format(row=each.row, column=each.column) for each in line) for _, line in lines)
            words = "".join(f"{line}\n" for line in written) + "\n" + words
        return form.around.replace("{image}", words)

    def _sequence(self, item: _Item, encoding: Encoding, limit: Limit, index: int) -> tuple[TokenSequence, Float32]:
        """The tokens of an input, and the boxes (n, 4) of its rows."""
        ids = np.array(encoding.ids, np.int32)
        marks, shown = ids == self._token, np.concatenate(item.boxes)
        if np.count_nonzero(marks) != len(shown):
            template = "{field} contains {token}, which stands for images in this model; remove it."
            raise InvalidField(template, index=index, token=self._form.token)
        self._plain.check_known(ids[~marks], index)
        ids[marks] = self._row_id
        boxes = np.full((len(ids), 4), np.nan, np.float32)
        boxes[marks] = shown
        kept = _fit(np.array(encoding.offsets), item.own, limit, index)
        length = TextLength(
            seen=len(ids),
            kept=int(np.count_nonzero(kept)),
            characters_cut=item.characters_cut,
            images=tuple(item.facts),
            image_tokens=len(shown),
        )
        sequence = TokenSequence(ids=ids[kept], type_ids=marks[kept].astype(np.int32), length=length, index=index)
        return sequence, boxes[kept]


def _fit(
    places: npt.NDArray[np.int64], own: Sequence[tuple[int, int]], limit: Limit, index: int
) -> npt.NDArray[np.bool_]:
    """Which tokens (n,) are kept: of too many, some of the client's texts, `own`, are cut. places (n, 2): characters.

    Raises as `kept_tokens`.
    """
    starts, stops = places.T
    may_be_cut = np.zeros(len(places), np.bool_)
    for start, stop in own:
        may_be_cut |= (start <= starts) & (starts < stops) & (stops <= stop)
    return kept_tokens(may_be_cut, limit, index)


def refuse_more_rows(rows: int, limit: Limit, index: int) -> None:
    """Raise ImagesTooLong as soon as the images of an input have too many rows, before the others are decoded."""
    if rows > limit.max_tokens:
        raise _images_too_long(rows, limit, index)


def _images_too_long(count: int, limit: Limit, index: int) -> ImagesTooLong:
    template = "{field} must have at most {limit} tokens; its images and the words around them have {given}."
    return ImagesTooLong(template, index=index, limit=limit.max_tokens, given=count)


def kept_tokens(may_be_cut: npt.NDArray[np.bool_], limit: Limit, index: int) -> npt.NDArray[np.bool_]:
    """Which tokens (n,) are kept: of too many, some of those that may be cut.

    Raises ImagesTooLong if the others are too many, and InputTooLong if none may be cut.
    """
    count, kept = len(may_be_cut), np.ones_like(may_be_cut)
    over = count - limit.max_tokens
    if over <= 0:
        return kept
    cut = np.flatnonzero(may_be_cut)
    if over > len(cut):
        raise _images_too_long(count - len(cut), limit, index)
    if not limit.truncate:
        raise limit.too_long(index, count)
    kept[cut[len(cut) - over :] if limit.side == "right" else cut[:over]] = False
    return kept
