"""The gateway's API as `diptych chat` uses it."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import orjson

from diptych.core.errors import DiptychError, Lost, NotFound

CONNECT_S = 10.0
SILENCE_S = 60.0  # a gateway that lives says something every 10 s
TIMINGS = {"x-diptych-timings": "1"}

Message = Mapping[str, Any]


class Declined(DiptychError):
    """An answer that is an error, before or within a stream."""

    def __init__(
        self, status: int, error: Mapping[str, Any], request_id: str, retry_after: str = ""
    ) -> None:
        code = str(error.get("code") or status)
        request_id = str(error.get("request_id") or request_id)
        parts = [f"{error.get('message', 'no reason given')} [{code}]"]
        if retry_after:
            parts.append(f"try again in {retry_after} s")
        if status == 401:
            parts.append("give a key in DIPTYCH_API_KEY")
        if request_id:
            parts.append(f"request {request_id}")
        super().__init__("; ".join(parts), code=code)


@dataclass(frozen=True, slots=True)
class Wish:
    """What every request of a conversation asks for; None is the gateway's default."""

    model: str = ""
    thinking: bool | None = None
    effort: int | str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None

    def fields(self) -> dict[str, Any]:
        """Of a request."""
        fields: dict[str, Any] = {
            "model": self.model,
            "reasoning_effort": self.effort,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
        }
        if self.thinking is not None:
            fields["thinking"] = {"type": "enabled" if self.thinking else "disabled"}
        return {name: value for name, value in fields.items() if value is not None}


class Gateway:
    """One gateway, by its address; `key` is an API key or empty."""

    def __init__(self, url: str, key: str = "") -> None:
        self._url = url
        self._http = httpx.Client(
            base_url=url,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S),
            verify=httpx.create_ssl_context(),  # knows SSL_CERT_FILE
            trust_env=not _is_here(url),  # a proxy does not lead to this machine
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._http.close()

    def model_name(self) -> str:
        """The first model that the key may use."""
        with self._reached():
            reply = self._http.get("/v1/models")
            _check(reply)
            models = reply.json()["data"]
        if not models:
            raise NotFound(f"{self._url} has no model that this key may use")
        name: str = models[0]["id"]
        return name

    def chat(
        self, messages: Sequence[Message], wish: Wish
    ) -> Generator[dict[str, Any], None, None]:
        """The chunks of an answer; closing the iterator ends the answer at the gateway, too."""
        body = {
            **wish.fields(),
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        with (
            self._reached(),
            self._http.stream("POST", "/v1/chat/completions", json=body, headers=TIMINGS) as reply,
        ):
            _check(reply)
            for line in reply.iter_lines():
                if line == "data: [DONE]":
                    return
                if line.startswith("data:"):
                    yield _chunk(line.removeprefix("data:"), _request_id(reply))
            raise Lost(f"the answer ended too early; request {_request_id(reply)}")

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except httpx.ReadTimeout:
            raise Lost(f"{self._url} has said nothing for {SILENCE_S:g} s") from None
        except (httpx.RemoteProtocolError, httpx.ReadError) as error:
            raise Lost(f"the connection to {self._url} broke: {error}") from None
        except httpx.TransportError as error:
            raise Lost(f"cannot reach {self._url}: {error}") from None


def _check(reply: httpx.Response) -> None:
    if reply.status_code == 200:
        return
    reply.read()
    retry_after = reply.headers.get("retry-after", "")
    raise Declined(reply.status_code, _error(reply), _request_id(reply), retry_after)


def _error(reply: httpx.Response) -> Mapping[str, Any]:
    """Of the envelope, if there is one: a proxy, or something else altogether, may answer."""
    try:
        body = orjson.loads(reply.content)
    except orjson.JSONDecodeError:
        body = None
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {"message": f"{reply.url} is no gateway of ours"}


def _chunk(data: str, request_id: str) -> dict[str, Any]:
    chunk: dict[str, Any] = orjson.loads(data)
    if "error" in chunk:
        raise Declined(200, chunk["error"], request_id)
    return chunk


def _request_id(reply: httpx.Response) -> str:
    found: str = reply.headers.get("x-request-id", "")
    return found


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
