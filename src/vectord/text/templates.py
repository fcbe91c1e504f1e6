"""Inputs and pairs of a language model that reads images, in its template: texts and images in the order given.

The text between two special tokens is tokenized as a whole. An image is a token for each row that the network of images
makes of it, between two others. Special tokens count in the template only; inside a client's text they are ordinary
text, as in yes_no.py. tokenizer.py calls it.

Source: the scripts of Qwen3-VL-Embedding and Qwen3-VL-Reranker. They cut too many tokens at the end of the input; here
the images and the template always stay, and the client's texts are cut.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace
from tokenizers import Encoding

from vectord.checkpoints.spec import ImageProcessor, ImageText, InputTemplate
from vectord.errors import InvalidField, ModelUnavailable
from vectord.schema import Float32, ImageFacts, Input, Int32, Media, TextLength
from vectord.text.images import ImageEncoder, ImageViews
from vectord.text.interleaved import kept_tokens, refuse_more_rows
from vectord.text.options import check_prompt, limit_of, refuse_prompts, require_specials
from vectord.text.plain import PlainTokenizer, Source, cut_source
from vectord.text.planes import text_coordinates
from vectord.text.sequence import ReadRequest, Texts, TokenSequence
from vectord.text.truncation import Limit

_SPECIAL = re.compile(r"(<\|\w+\|>)")
_PLACE = re.compile(r"\{(\w+)\}")


class _Run(msgspec.Struct):
    """Tokens of one input: a text that is tokenized alone, or given ids."""

    text: str = ""
    own: list[tuple[int, int, int]] = []  # the characters of the client's texts, and whose they are
    ids: Int32 | None = None
    owner: int = 0
    is_image: bool = False


class _Item(msgspec.Struct):
    index: int
    owners: int  # of the client's texts
    runs: list[_Run] = []
    images: list[Texts] = []
    blocks: list[tuple[int, int]] = []  # the rows and columns of each image
    boxes: list[Float32] = []
    characters_cut: int = 0
    facts: list[ImageFacts] = []

    def add_text(self, text: str, owner: int = 0) -> None:
        if not text:
            return
        if not self.runs or self.runs[-1].ids is not None:
            self.runs.append(_Run())
        run = self.runs[-1]
        if owner:
            run.own.append((len(run.text), len(run.text) + len(text), owner))
        run.text += text

    def add_ids(self, ids: Sequence[int], owner: int = 0, *, is_image: bool = False) -> None:
        self.runs.append(_Run(ids=np.array(ids, np.int32), owner=owner, is_image=is_image))


class _Reading(msgspec.Struct, frozen=True):
    """What the inputs of one request share."""

    limit: Limit
    words: dict[str, str]  # of places in the template that are no inputs
    own_ids: bool  # TextOptions.own_ids
    # By the id of their Media: a query's images are the same in all pairs.
    images: dict[int, tuple[ImageViews, Texts]] = msgspec.field(default_factory=dict)


class TemplateEncoder:
    def __init__(
        self,
        plain: PlainTokenizer,
        template: InputTemplate,
        image: ImageText,
        processor: ImageProcessor,
        max_tokens: int,
        path: Path,
    ) -> None:
        """path: the tokenizer's, for messages. From now on `plain` reads special tokens in texts as ordinary text."""
        self._plain, self._template, self._max_tokens, self._path = plain, template, max_tokens, path
        self.reads_pairs = "{query}" in template.text
        self._images = ImageEncoder(processor)
        before, after = image.view.split("{rows}")
        self._around = [self._id(before)], [self._id(after)]
        self._row = self._id(image.token)
        for each in _SPECIAL.findall(template.text):
            self._id(each)
        plain.read_specials_as_text()

    def read(self, request: ReadRequest, indexes: Sequence[int], prompt: str) -> Texts:
        """The sequence of each input, of pairs with the query. prompt: of the request; "" for pairs.

        Raises InvalidField for an image that is not readable, ImagesTooLong for images that do not fit, and ModelCannot
        without Pillow.
        """
        shared: dict[str, Input] = {}
        if request.query is not None:
            refuse_prompts(request.options)
            prompt = check_prompt(request.instruction or "", "instruction")
            shared = {"query": request.query}
        words = {"prompt": (prompt if shared else _sentence(prompt)) or self._template.prompt}
        require_specials(request.options, "a language model's template")
        reading = _Reading(limit_of(request, self._max_tokens, 1), words, request.options.own_ids)
        items = [self._item({**shared, "input": request.inputs[i]}, i, reading) for i in indexes]
        read = [*self._sequences(items, reading.limit)]
        images, shown = _distinct([each for item in items for each in item.images])
        return replace(
            Texts.of([sequence for sequence, _ in read]),
            digests=[_digest(item) for item in items] if images else (),
            boxes=[box for _, box in read] if images else (),
            images=Texts.join(images) if images else None,
            shown=shown,
        )

    def _item(self, values: dict[str, Input], index: int, reading: _Reading) -> _Item:
        """The template, filled in. values: of the places of inputs, in order."""
        item = _Item(index, len(values))
        item.add_ids(self._plain.frame.prefix)
        owners = {name: owner for owner, name in enumerate(values, 1)}
        for i, piece in enumerate(_SPECIAL.split(self._template.text)):
            if i % 2:
                item.add_ids([self._id(piece)])
                continue
            for j, part in enumerate(_PLACE.split(piece)):
                if j % 2 and part in values:
                    self._add(item, values[part], owners[part], reading)
                else:
                    item.add_text(reading.words[part] if j % 2 else part)
        item.add_ids(self._plain.frame.suffix)
        return item

    def _add(self, item: _Item, value: Input, owner: int, reading: _Reading) -> None:
        limit, known = reading.limit, reading.images
        if not isinstance(value, str | Media) and any(isinstance(part, int) for part in value):
            if any(isinstance(part, Media) for part in value):
                raise InvalidField("{field} has token ids next to an image; send them as a text.", index=item.index)
            ids, _ = self._plain.own_or_text(value, limit, item.index, own_ids=reading.own_ids)
            value = self._plain.text_of(ids, limit, item.index)
        for part in [value] if isinstance(value, str | Media) else value:
            if isinstance(part, Media):
                if id(part) not in known:
                    known[id(part)] = self._images.read_image(part, item.index)
                image, rows = known[id(part)]
                item.images.append(rows)
                item.blocks.append(image.blocks)
                item.boxes.append(image.boxes)
                refuse_more_rows(sum(map(len, item.boxes)), limit, item.index)
                item.facts += rows.lengths[0].images
                item.add_ids(self._around[0], owner)
                item.add_ids([self._row] * len(item.boxes[-1]), owner, is_image=True)
                item.add_ids(self._around[1], owner)
            else:
                source = cut_source(str(part), limit, item.index)
                item.characters_cut += source.characters_cut
                item.add_text(source.text, owner)

    def _sequences(self, items: Sequence[_Item], limit: Limit) -> Iterator[tuple[TokenSequence, Float32]]:
        """The tokens of each input, and the boxes (n, 4) of its rows."""
        sources = [Source(item.index, run.text) for item in items for run in item.runs if run.ids is None]
        encodings = self._plain.encodings(sources, specials=False, offsets=True)
        for item in items:
            runs = [_tokens(run, None if run.ids is not None else next(encodings)) for run in item.runs]
            ids = np.concatenate([run.ids for run in runs])
            owners = np.concatenate([run.owners for run in runs])
            marks, is_text = (np.concatenate([getattr(run, part) for run in runs]) for part in ("is_image", "is_text"))
            boxes = np.full((len(ids), 4), np.nan, np.float32)
            boxes[marks] = np.concatenate([np.zeros((0, 4), np.float32), *item.boxes])
            kept = kept_tokens(is_text & (owners > 0), limit, item.index)
            length = TextLength(
                seen=len(ids),
                kept=int(np.count_nonzero(kept)),
                characters_cut=item.characters_cut,
                images=tuple(item.facts),
                image_tokens=int(np.count_nonzero(marks)),
            )
            counts = [
                [int(np.count_nonzero(each == i + 1)) for each in (owners, owners[kept])] for i in range(item.owners)
            ]
            sequence = self._plain.sequence(
                ids[kept],
                length,
                item.index,
                type_ids=marks[kept].astype(np.int32),
                parts=tuple(TextLength(seen, kept) for seen, kept in counts) if item.owners > 1 else (),
                coordinates=text_coordinates(marks[kept], item.blocks) if item.blocks else None,
            )
            yield sequence, boxes[kept]

    def _id(self, token: str) -> int:
        """The id of a special token. Raises ModelUnavailable without it."""
        found: int | None = self._plain.tokenizer.token_to_id(token)
        if found is None:
            raise ModelUnavailable(f"{self._path}: has no token {token[:40]!r}, which the model's template needs")
        return found


class _Tokens(msgspec.Struct, frozen=True, eq=False):
    ids: Int32  # (n,) as the others
    owners: Int32  # which of the client's texts a token is of, from 1; 0: of none
    is_image: npt.NDArray[np.bool_]
    is_text: npt.NDArray[np.bool_]


def _tokens(run: _Run, encoding: Encoding | None) -> _Tokens:
    if encoding is None or run.ids is not None:
        ids = np.zeros(0, np.int32) if run.ids is None else run.ids
        owners = np.full(len(ids), run.owner, np.int32)
        return _Tokens(ids, owners, np.full(len(ids), run.is_image), np.zeros(len(ids), np.bool_))
    ids, owners = np.array(encoding.ids, np.int32), np.zeros(len(encoding.ids), np.int32)
    starts, stops = np.array(encoding.offsets, np.int32).reshape(-1, 2).T
    for start, stop, owner in run.own:
        owners[(start <= starts) & (starts < stops) & (stops <= stop)] = owner
    return _Tokens(ids, owners, np.zeros(len(ids), np.bool_), np.ones(len(ids), np.bool_))


def _distinct(images: Sequence[Texts]) -> tuple[list[Texts], Int32 | None]:
    """Each of these sequences once, and `Texts.shown`."""
    distinct = {id(each): each for each in images}
    if len(distinct) == len(images):
        return list(images), None
    counts = {key: int(each.all_pooled.sum()) for key, each in distinct.items()}
    firsts = dict(zip(counts, np.cumsum([0, *counts.values()]), strict=False))
    shown = [np.arange(firsts[id(each)], firsts[id(each)] + counts[id(each)]) for each in images]
    return list(distinct.values()), np.concatenate(shown).astype(np.int32)


def _digest(item: _Item) -> bytes:
    files = b"".join(each.digests[0] for each in item.images)
    return blake2b(files, digest_size=16).digest() if files else b""


def _sentence(prompt: str) -> str:
    """The prompt with a full stop, unless it ends in punctuation."""
    prompt = prompt.strip()
    return f"{prompt}." if prompt and not unicodedata.category(prompt[-1]).startswith("P") else prompt
