"""Documents in files, as the tokens of a model.

A file holds one text. ``.json`` is a list of token ids. ``.jsonl`` has a document in each line: a
text, a list of token ids, an object with ``text``, or one with ``messages``, for the model's chat
template.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from hexkv.ports import InvalidRequest


class Document(NamedTuple):
    """The tokens of a document."""

    name: str
    """The file, and the line where it has several."""

    tokens: list[int]


class Reader:
    """Makes tokens of files.

    Args:
        tokenizer: the model's; ``None`` where it has none, and tokens are to be given.
        vocabulary: how many tokens the model knows.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary

    def read(self, path: Path) -> Iterator[Document]:
        """The documents in a file.

        Raises:
            InvalidRequest: it cannot be read, or holds something else.
        """
        try:
            text = path.read_text("utf-8")
        except OSError as error:
            raise InvalidRequest(f"{path}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"{path}: is no text") from error
        if path.suffix == ".jsonl":
            for number, line in enumerate(text.splitlines(), start=1):
                if line.strip():
                    name = f"{path}:{number}"
                    yield Document(name, self._tokens(name, _parsed(name, line)))
        elif path.suffix == ".json":
            yield Document(str(path), self._tokens(str(path), _parsed(str(path), text)))
        else:
            yield Document(str(path), self._tokens(str(path), text))

    def _tokens(self, name: str, document: Any) -> list[int]:
        messages = None
        if isinstance(document, dict):
            messages, document = document.get("messages"), document.get("text")
        if isinstance(document, list):
            return self._checked(name, document)
        if self._tokenizer is None:
            raise InvalidRequest(f"{name}: the model has no tokenizer: give token ids")
        try:
            if isinstance(messages, list):
                document = self._tokenizer.apply_chat_template(messages, tokenize=False)
                found = self._tokenizer(document, add_special_tokens=False).input_ids
            elif isinstance(document, str):
                found = self._tokenizer(document).input_ids
            else:
                raise InvalidRequest(f"{name}: neither a text nor token ids")
        except (ValueError, TypeError, KeyError) as error:
            why = next(iter(str(error).splitlines()), "")
            raise InvalidRequest(f"{name}: cannot be made tokens of: {why}") from error
        return self._checked(name, found)

    def _checked(self, name: str, tokens: Sequence[object]) -> list[int]:
        found = [token for token in tokens if type(token) is int and 0 <= token < self._vocabulary]
        if len(found) != len(tokens) or not found:
            raise InvalidRequest(f"{name}: no list of the model's {self._vocabulary} token ids")
        return found


def _parsed(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name}: is no JSON") from error
