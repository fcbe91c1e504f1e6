"""TextLengths: columns in place of a TextLength for each input."""

from hypothesis import given
from hypothesis import strategies as st

from vectord.schema import ImageFacts, TextLength, TextLengths

FACTS = ImageFacts(width=3, height=5, format="png", bit_depth=24)
LENGTH = st.builds(
    lambda kept, cut, characters, foreign, images: TextLength(kept + cut, kept, characters, foreign, images, kept // 2),
    st.integers(0, 9),
    st.sampled_from([0, 0, 0, 4]),
    st.sampled_from([0, 0, 7]),
    st.booleans(),
    st.sampled_from([(), (), (FACTS,)]),
) | st.integers(0, 9).map(lambda tokens: TextLength(tokens, tokens))


@given(st.lists(st.lists(LENGTH, max_size=4), max_size=4))
def test_columns_have_the_lengths_of_all_parts_in_order(parts: list[list[TextLength]]) -> None:
    """Also joined. Only lengths that are more than a number have an object, so equal lengths are equal columns."""
    every = [length for part in parts for length in part]
    joined = TextLengths.join([TextLengths.of(part) for part in parts])
    assert joined == TextLengths.of(every)
    assert list(joined) == [joined[place] for place in range(len(joined))] == every
    assert joined.truncated == [place for place, length in enumerate(every) if length.truncated]
    assert all(length != TextLength(length.kept, length.kept) for length in joined.details.values())
