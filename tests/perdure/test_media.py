"""What a tool may return to be shown: seen by its first bytes, refused with the fix, told of in a few words."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from activities.rendering import render_parts
from perdure import Document, Image
from perdure.media import MOST_BYTES, in_words, too_large
from perdure.messages import DocumentPart, ImagePart, TextPart
from perdure.run_input import RunInput

PNG = b"\x89PNG\r\n\x1a\n" + bytes(4_000)
JPEG = b"\xff\xd8\xff\xe0" + bytes(40)
GIF = b"GIF89a" + bytes(40)
WEBP = b"RIFF\x24\x00\x00\x00WEBPVP8 " + bytes(40)
PDF = b"%PDF-1.7\n" + bytes(40)
ODD = b"\x00\x01\x02\x03" * 20


def encoded(data: bytes) -> str:
    """As base64."""
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("data", "media_type"),
    [(PNG, "image/png"), (JPEG, "image/jpeg"), (GIF, "image/gif"), (WEBP, "image/webp")],
)
@pytest.mark.parametrize("told", [None, "image/png", "image/jpg", "image/x-odd"])
def test_the_bytes_say_which_image_it_is(data: bytes, media_type: str, told: str | None) -> None:
    """Whatever is told beside them, and whether they come as bytes or as base64."""
    for image in (Image(data, media_type=told), Image(base64=encoded(data), media_type=told)):
        assert image.part == ImagePart(type="image", base64=encoded(data), media_type=media_type)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_of_any_kind_are_taken(kind: Any) -> None:
    """As what reads them gives them."""
    assert Image(kind(PNG)).part.base64 == encoded(PNG)


@pytest.mark.parametrize(
    ("data", "told", "media_type"),
    [
        (PDF, None, "application/pdf"),
        (b"junk\n" + PDF, None, "application/pdf"),
        (PDF, "text/plain", "application/pdf"),
        (b"a,b\n1,2\n", None, "text/plain"),
        (b"a,b\n1,2\n", "text/csv", "text/csv"),
        ("\u4e2d".encode(), None, "text/plain"),
        (ODD, "application/x-odd", "application/x-odd"),
    ],
)
def test_the_bytes_say_which_document_it_is(data: bytes, told: str | None, media_type: str) -> None:
    """PDF and text are seen; of others the author says what they are."""
    part = Document(data, media_type=told, name="a").part
    assert part == DocumentPart(type="document", base64=encoded(data), media_type=media_type, name="a")


def test_an_address_is_passed_on() -> None:
    """Nothing is fetched."""
    assert Image(url="https://h/x.png").part == ImagePart(type="image", url="https://h/x.png")
    assert Document(url="https://h/x.pdf", name="x").part.url == "https://h/x.pdf"


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Image(), "Image: give one of the bytes, base64= and url="),
        (lambda: Image(PNG, url="https://h/x"), "Image: give one of the bytes, base64= and url="),
        (lambda: Document(), "Document: give one of the bytes, base64= and url="),
        (lambda: Image("cat.png"), "Image: takes bytes, not str; read a file with Path"),  # type: ignore[arg-type]
        (lambda: Image(b""), "base64: must be its bytes in base64"),
        (lambda: Image(base64="%%"), "base64: must be its bytes in base64"),
        (lambda: Image(url="cat.png"), "url: must begin with http://"),
        (lambda: Image(ODD), "Image: these bytes are no PNG, JPEG, GIF or WebP"),
        (lambda: Image(b"<html>404</html>", media_type="image/png"), "Image: these bytes are no PNG"),
        (lambda: Image(PDF), "these are the bytes of application/pdf, so this must be a document"),
        (lambda: Image(ODD, media_type="application/x-odd"), "media_type: that of an image begins with image/"),
        (lambda: Document(PNG), "these are the bytes of image/png, so this must be an image"),
        (lambda: Document(ODD), "Document: these bytes are neither PDF nor text"),
        (lambda: Document(b"hi", media_type="application/pdf"), "Document: these bytes are no PDF"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_the_fix(make: Any, problem: str) -> None:
    """Where it is made, so that the model is told by the tool's error."""
    with pytest.raises(ValueError, match=problem.replace("(", r"\(")):
        make()


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (Image(PNG), "[image image/png 4 KB]"),
        (Image(JPEG), "[image image/jpeg 1 KB]"),
        (Image(PNG + bytes(1_500_000)), "[image image/png 1.5 MB]"),
        (Image(url="https://h/x.png"), "[image https://h/x.png]"),
        (Image(url="data:image/png;base64,aGk="), "[image image/png 1 KB]"),
        (Document(PDF, name="a.pdf"), "[document application/pdf 1 KB a.pdf]"),
    ],
)
def test_few_words_stand_for_the_bytes(shown: Image | Document, words: str) -> None:
    """Also where one is printed or logged."""
    assert in_words(shown.part) == repr(shown) == str(shown) == words


def text(words: str) -> TextPart:
    """A part of text."""
    return TextPart(type="text", text=words)


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (Image(JPEG), (text("[image image/jpeg 1 KB]"), Image(JPEG).part)),
        ((Image(GIF),), (text("[image image/gif 1 KB]"), Image(GIF).part)),
        (
            ["Look:", Image(JPEG), "and", Document(PDF), {"n": 1}],
            (
                text("Look:"),
                text("[image image/jpeg 1 KB]"),
                Image(JPEG).part,
                text("and"),
                text("[document application/pdf 1 KB]"),
                Document(PDF).part,
                text('{"n":1}'),
            ),
        ),
        ([1, "a"], (text('[1,"a"]'),)),
        ({"shot": Image(JPEG)}, (text('{"shot":"[image image/jpeg 1 KB]"}'),)),
        ("", ()),
    ],
)
def test_what_a_tool_returned_as_parts(value: Any, parts: Any) -> None:
    """Alone or in a list they are shown; anywhere else only the words for them are."""
    assert render_parts(value, 1_000) == parts


def test_the_texts_beside_an_image_are_bounded_together() -> None:
    """However many there are."""
    parts = render_parts([Image(JPEG), *(["y" * 900] * 5)], 1_000)
    assert sum(part.text.count("y") for part in parts if isinstance(part, TextPart)) <= 1_000


def test_what_one_message_holds_is_bounded() -> None:
    """All of it together; addresses do not count."""
    half = Image(PNG + bytes(MOST_BYTES // 2)).part
    assert too_large([half, text("y" * MOST_BYTES), Image(url="https://h/x.png").part]) is None
    shown = "[image image/png 604 KB]"
    problem = f"{shown} {shown}: 1.2 MB of images and documents, and a message holds 1.2 MB"
    assert too_large([half, half]) == problem


def given(**part: Any) -> Any:
    """The first part of a run's prompt as it is taken."""
    prompt = RunInput.model_validate({"agent": "a", "prompt": [part]}).prompt
    return prompt and prompt[0]


def test_a_prompt_has_the_media_type_of_its_bytes() -> None:
    """What was left out or wrong is set right."""
    for told in ({}, {"media_type": "image/png"}):
        assert given(type="image", base64=encoded(JPEG), **told).media_type == "image/jpeg"
    assert given(type="document", base64=encoded(PDF)).media_type == "application/pdf"


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"type": "image", "base64": encoded(PDF)}, "so this must be a document"),
        ({"type": "document", "base64": encoded(PNG)}, "so this must be an image"),
        ({"type": "image", "base64": encoded(ODD), "media_type": "text/html"}, "that of an image begins with image/"),
        ({"type": "image", "base64": encoded(PNG + bytes(MOST_BYTES))}, "a message holds 1.2 MB; give an address"),
        ({"type": "image", "url": f"data:image/png;base64,{encoded(bytes(MOST_BYTES + 3))}"}, "a message holds 1.2 MB"),
        ({"type": "document", "base64": "not base64"}, "must be its bytes in base64"),
    ],
)
def test_a_prompt_that_cannot_be_shown_is_refused(part: dict[str, Any], problem: str) -> None:
    """Before anything is asked of a model."""
    with pytest.raises(ValueError, match=problem):
        given(**part)
