"""Inputs with images, and all inputs of a model with a template, as sequences: texts and images in the order given.

An image becomes words of the model's own, with a token for each row that the network of images makes of it
(spec.ImageText). Those rows have the type 1; `Texts.images` are the images' own sequences, whose vectors take their
place. The text between two special tokens of the model's own words is tokenized as a whole. tokenizer.py calls it.

In a template (spec.InputTemplate), special tokens count in the model's own words only; inside a client's text they are
ordinary text, as in yes_no.py. Source: the scripts of Qwen3-VL-Embedding and Qwen3-VL-Reranker. They cut too many
tokens at the end of the input; here the images and the model's words always stay, and the client's texts are cut.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from vectord.checkpoints.spec import ImageProcessor, InputTemplate, ModelSpec
from vectord.errors import ImagesTooLong, InvalidField, ModelUnavailable
from vectord.schema import Float32, ImageFacts, Input, Int32, Media, TextLength
from vectord.text.images import ImageEncoder, ImageViews
from vectord.text.options import check_prompt, limit_of, refuse_prompts, require_specials
from vectord.text.plain import PlainTokenizer, Source, cut_source
from vectord.text.planes import text_coordinates
from vectord.text.sequence import ReadRequest, Texts, TokenSequence
from vectord.text.truncation import Limit

_SPECIAL = re.compile(r"(<[^<>\s]+>)")  # what may be a special token in a model's own words
_NEEDED = re.compile(r"<\|\w+\|>")  # what must be one, in a template
_PLACE = re.compile(r"\{(\w+)\}")
_TEXT, _WORDS, _ROW = range(3)  # kinds of tokens: of a text, special tokens of the model's own words, rows of an image


class _Run(msgspec.Struct):
    """Tokens of one input: a text that is tokenized alone, or given ids."""

    text: str = ""
    own: list[tuple[int, int, int]] = []  # the characters of the client's texts, and whose they are
    ids: Sequence[int] | None = None
    owner: int = 0
    kind: int = _TEXT

    def read(self, encodings: Iterator[Any]) -> Int32:
        """(3, n): the id of each token; which of the client's texts it is of, from 1, 0: of none; and its kind.

        encodings: of texts; the next one is this run's.
        """
        if self.ids is not None:
            owners, kinds = (np.full(len(self.ids), number, np.int32) for number in (self.owner, self.kind))
            return np.stack([np.array(self.ids, np.int32), owners, kinds])
        encoding = next(encodings)
        starts, stops = np.array(encoding.offsets, np.int32).reshape(-1, 2).T
        owners = np.zeros(len(starts), np.int32)
        for start, stop, owner in self.own:
            owners[(start <= starts) & (starts < stops) & (stops <= stop)] = owner
        return np.stack([np.array(encoding.ids, np.int32), owners, np.full_like(owners, _TEXT)])


class _Item(msgspec.Struct):
    index: int
    owners: int  # of the client's texts
    runs: list[_Run] = []
    images: list[Texts] = []
    blocks: list[tuple[int, int]] = []  # the rows and columns of each image
    boxes: list[Float32] = []
    characters_cut: int = 0
    facts: list[ImageFacts] = []

    @property
    def digest(self) -> bytes:
        files = b"".join(each.digests[0] for each in self.images)
        return blake2b(files, digest_size=16).digest() if files else b""

    def add_text(self, text: str, owner: int = 0) -> None:
        if not text:
            return
        if not self.runs or self.runs[-1].ids is not None:
            self.runs.append(_Run())
        run = self.runs[-1]
        if owner:
            run.own.append((len(run.text), len(run.text) + len(text), owner))
        run.text += text

    def add_ids(self, ids: Sequence[int], owner: int = 0, kind: int = _WORDS) -> None:
        self.runs.append(_Run(ids=ids, owner=owner, kind=kind))


class _Reading(msgspec.Struct, frozen=True):
    """What the inputs of one request share."""

    limit: Limit
    prompt: str
    own_ids: bool  # TextOptions.own_ids
    # By the id of their Media: a query's images are the same in all pairs.
    images: dict[int, tuple[ImageViews, Texts]] = msgspec.field(default_factory=dict)


class InterleavedEncoder:
    """The inputs of one model that reads images in texts: those with images, or all of a model with a template."""

    def __init__(self, plain: PlainTokenizer, spec: ModelSpec, processor: ImageProcessor) -> None:
        """Raises ModelUnavailable without a special token of the words around images and inputs. From now on `plain`
        reads special tokens in texts as ordinary text, if there is a template."""
        assert spec.image_text is not None, "of a model whose images are rows of texts"
        self._plain, self._form, self._max_tokens = plain, spec.image_text, spec.max_tokens
        self._has_template, self._has_coordinates = spec.template is not None, spec.coordinates is not None
        self._template = spec.template or InputTemplate(text="{prompt}{input}", prompt="")
        self.reads_pairs = "{query}" in self._template.text
        self._images = ImageEncoder(processor)
        added = plain.tokenizer.get_added_tokens_decoder().items()
        self._specials = {token.content: id_ for id_, token in added}
        words = self._template.text + self._form.around + self._form.view if self._has_template else ""
        for token in (self._form.token, *_NEEDED.findall(words)):
            if token not in self._specials:
                raise ModelUnavailable(
                    f"{spec.tokenizer}: has no token {token[:40]!r}, which the words around images or inputs need"
                )
        self._token = self._specials[self._form.token]
        # The network may have no word vector for it.
        self._row_id = self._token if self._token < plain.vocab_size else 0
        self._frame = ((), ()) if self._form.framed is False else (plain.frame.prefix, plain.frame.suffix)
        if self._has_template:
            plain.read_specials_as_text()

    def reads(self, value: Input | tuple[str, str]) -> bool:
        return self._has_template or has_image(value)

    def read(self, request: ReadRequest, indexes: Sequence[int], prompt: str) -> Texts:
        """The sequence of each input, or of each one and the query, with those of its images. prompt: of the request.

        Too many tokens are cut from its texts, not its images. Raises InvalidField for an image that is not readable,
        ImagesTooLong for images that do not fit, and ModelCannot without Pillow.
        """
        shared: dict[str, Input] = {}
        if request.query is not None:
            refuse_prompts(request.options)
            prompt = check_prompt(request.instruction or "", "instruction")
            shared = {"query": request.query}
        elif self._has_template:
            prompt = prompt if self._template.keeps_prompt else _sentence(prompt)
        elif self._form.alone:  # a kind of texts, and its prompt, are not for images
            prompt = request.options.prompt or ""
        require_specials(request.options, "a language model's template" if self._has_template else "images")
        limit = limit_of(request, self._max_tokens, sum(self._plain.frame.specials) + 1)
        reading = _Reading(limit, prompt or self._template.prompt, request.options.own_ids)
        items = [self._item({**shared, "input": request.inputs[i]}, i, reading) for i in indexes]
        read = [*self._sequences(items, limit)]
        every = [each for item in items for each in item.images]
        distinct, shown = {id(each): each for each in every}, None
        if len(distinct) < len(every):
            counts = {key: int(each.all_pooled.sum()) for key, each in distinct.items()}
            firsts = dict(zip(counts, np.cumsum([0, *counts.values()]), strict=False))
            ranges = [np.arange(firsts[id(each)], firsts[id(each)] + counts[id(each)]) for each in every]
            shown = np.concatenate(ranges).astype(np.int32)
        return replace(
            Texts.of([sequence for sequence, _ in read]),
            digests=[item.digest for item in items] if distinct else (),
            boxes=[box for _, box in read] if distinct else (),
            images=Texts.join(list(distinct.values())) if distinct else None,
            shown=shown,
        )

    def _item(self, values: Mapping[str, Input], index: int, reading: _Reading) -> _Item:
        """The template, filled in. values: of the places of inputs, in order."""
        prefix, suffix = self._frame
        item, owners = _Item(index, len(values)), {name: owner for owner, name in enumerate(values, 1)}
        item.add_ids(prefix)
        for i, part in enumerate(_PLACE.split(self._template.text)):
            if i % 2 == 0:
                self._add_words(item, part)
            elif part in values:
                self._add(item, values[part], owners[part], reading)
            else:
                item.add_text(reading.prompt)
        item.add_ids(suffix)
        return item

    def _add_words(self, item: _Item, words: str, owner: int = 0) -> None:
        """Add words of the model's own. owner: of the special tokens among them."""
        for piece in _SPECIAL.split(words):
            if piece in self._specials:
                item.add_ids([self._specials[piece]], owner)
            else:
                item.add_text(piece)

    def _add(self, item: _Item, value: Input, owner: int, reading: _Reading) -> None:
        parts = [value] if isinstance(value, str | Media) else value
        if self._form.alone and (reading.prompt or len(parts) > 1):
            template = "{field} has an image and {other}; this model embeds images alone."
            raise InvalidField(template, index=item.index, other="a prompt" if reading.prompt else "another part")
        if any(isinstance(part, int) for part in parts):
            if any(isinstance(part, Media) for part in parts):
                raise InvalidField("{field} has token ids next to an image; send them as a text.", index=item.index)
            ids, _ = self._plain.own_or_text(value, reading.limit, item.index, own_ids=reading.own_ids)
            parts = [self._plain.text_of(ids, reading.limit, item.index)]
        for part in parts:
            if isinstance(part, Media):
                self._add_image(item, part, owner, reading)
            else:
                source = cut_source(str(part), reading.limit, item.index)
                item.characters_cut += source.characters_cut
                item.add_text(source.text, owner)

    def _add_image(self, item: _Item, media: Media, owner: int, reading: _Reading) -> None:
        if id(media) not in reading.images:
            reading.images[id(media)] = self._images.read_image(media, item.index)
        image, rows = reading.images[id(media)]
        item.images.append(rows)
        item.blocks.append(image.blocks)
        item.boxes.append(image.boxes)
        if (rows_so_far := sum(map(len, item.boxes))) > reading.limit.max_tokens:  # before the others are read
            raise _images_too_long(rows_so_far, reading.limit, item.index)
        item.facts += rows.lengths[0].images
        high, wide = image.blocks
        before, *views = self._words(image).split("{rows}")
        self._add_words(item, before, owner)
        for after in views:
            item.add_ids([self._row_id] * (high * wide), owner, _ROW)
            self._add_words(item, after, owner)

    def _words(self, image: ImageViews) -> str:
        """The words of an image, with the place {rows} of the tokens of each view."""
        tiles = [view for view in image.views if view.row]
        lines = (
            "".join(self._form.tile.format(row=each.row, column=each.column, rows="{rows}") for each in line)
            for _, line in groupby(tiles, key=lambda view: view.row)
        )
        written = "".join(f"{line}\n" for line in lines) + "\n" * bool(tiles)
        return self._form.around.replace("{image}", written + self._form.view)

    def _sequences(self, items: Sequence[_Item], limit: Limit) -> Iterator[tuple[TokenSequence, Float32]]:
        """The tokens of each input, and the boxes (n, 4) of its rows."""
        sources = [Source(item.index, run.text) for item in items for run in item.runs if run.ids is None]
        encodings = self._plain.encodings(sources, specials=False)
        for item in items:
            ids, owners, kinds = np.concatenate([run.read(encodings) for run in item.runs], axis=1)
            if ((ids == self._token) & (kinds == _TEXT)).any():
                template = "{field} contains {token}, which stands for images in this model; remove it."
                raise InvalidField(template, index=item.index, token=self._form.token)
            marks = kinds == _ROW
            boxes = np.full((len(ids), 4), np.nan, np.float32)
            boxes[marks] = np.concatenate([np.zeros((0, 4), np.float32), *item.boxes])
            kept = _kept((kinds == _TEXT) & (owners > 0), limit, item.index)
            counts = [
                [int(np.count_nonzero(each == i + 1)) for each in (owners, owners[kept])] for i in range(item.owners)
            ]
            length = TextLength(
                seen=len(ids),
                kept=int(np.count_nonzero(kept)),
                characters_cut=item.characters_cut,
                images=tuple(item.facts),
                image_tokens=int(np.count_nonzero(marks)),
            )
            has_coordinates = self._has_coordinates and item.images
            sequence = self._plain.sequence(
                ids[kept],
                length,
                item.index,
                type_ids=marks[kept].astype(np.int32),
                parts=tuple(TextLength(seen, kept) for seen, kept in counts) if item.owners > 1 else (),
                coordinates=text_coordinates(marks[kept], item.blocks) if has_coordinates else None,
            )
            yield sequence, boxes[kept]


def has_image(value: object) -> bool:
    """Whether an input is an image, or has one among its parts."""
    return isinstance(value, Media) or (isinstance(value, (list, tuple)) and any(isinstance(x, Media) for x in value))


def _images_too_long(count: int, limit: Limit, index: int) -> ImagesTooLong:
    template = "{field} must have at most {limit} tokens; its images and the words around them have {given}."
    return ImagesTooLong(template, index=index, limit=limit.max_tokens, given=count)


def _kept(may_be_cut: npt.NDArray[np.bool_], limit: Limit, index: int) -> npt.NDArray[np.bool_]:
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


def _sentence(prompt: str) -> str:
    """The prompt with a full stop, unless it ends in punctuation."""
    prompt = prompt.strip()
    return f"{prompt}." if prompt and not unicodedata.category(prompt[-1]).startswith("P") else prompt
