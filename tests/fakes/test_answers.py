from __future__ import annotations

import gzip

import pytest

from tests.fakes.answers import Answer, Answered, Break, Fault, Pause, Reply, Send, Step, plan

JSON = Reply("application/json", body=b'{"a":1}')
EVENTS = Reply("text/event-stream", events=(b"one", b"two", b"three"))


def sent(steps: list[Step]) -> bytes:
    return b"".join(step.data for step in steps if isinstance(step, Send))


def shape(steps: list[Step]) -> list[str]:
    return [type(step).__name__ if not isinstance(step, Break) else step.kind for step in steps]


def test_a_body_has_a_length() -> None:
    steps = plan(Answer(), JSON)
    assert sent(steps) == (
        b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 7\r\n\r\n{"a":1}'
    )
    assert shape(steps) == ["Send", "Send", "Answered"]


def test_events_are_a_chunk_and_a_send_each() -> None:
    steps = plan(Answer(), EVENTS)
    assert [step.data for step in steps[1:5] if isinstance(step, Send)] == [
        b"3\r\none\r\n",
        b"3\r\ntwo\r\n",
        b"5\r\nthree\r\n",
        b"0\r\n\r\n",
    ]
    assert b"transfer-encoding: chunked\r\n" in sent(steps)


def test_framings_may_be_chosen() -> None:
    assert sent(plan(Answer(framing="length"), EVENTS)).endswith(b"content-length: 11\r\n\r\nonetwothree")
    assert sent(plan(Answer(framing="chunked"), JSON)).endswith(b'7\r\n{"a":1}\r\n0\r\n\r\n')
    until_eof = plan(Answer(framing="eof"), JSON)
    assert sent(until_eof).endswith(b'application/json\r\n\r\n{"a":1}')
    assert shape(until_eof)[-2:] == ["Answered", "close"]


def test_times_lie_where_they_were_asked_for() -> None:
    steps = plan(Answer(delay_to_head=1, delay_to_body=2, gap=3), EVENTS)
    assert shape(steps) == [
        *["Pause", "Send", "Pause", "Send", "Pause", "Send", "Pause", "Send", "Send", "Answered"]
    ]
    assert [step.seconds for step in steps if isinstance(step, Pause)] == [1, 2, 3, 3]


def test_headers_replace_the_usual_ones_of_their_name() -> None:
    answer = Answer(headers=(("Content-Type", "text/plain"), ("X-A", "1"), ("X-A", "2")))
    assert sent(plan(answer, JSON)).startswith(
        b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\nContent-Type: text/plain\r\nX-A: 1\r\nX-A: 2\r\n\r\n"
    )


def test_gzip() -> None:
    head, _, body = sent(plan(Answer(gzip=True), JSON)).partition(b"\r\n\r\n")
    assert gzip.decompress(body) == JSON.body
    assert b"content-encoding: gzip" in head
    assert b"content-length: %d" % len(body) in head


@pytest.mark.parametrize(
    ("answer", "head_only"), [(Answer(status=204), False), (Answer(status=304), False), (Answer(), True)]
)
def test_answers_without_a_body(answer: Answer, head_only: bool) -> None:
    assert sent(plan(answer, JSON, head_only=head_only)).endswith(b"\r\n\r\n")


def test_closing_when_told_or_asked() -> None:
    for steps in (plan(Answer(close=True), JSON), plan(Answer(), JSON, keep_alive=False)):
        assert b"connection: close\r\n" in sent(steps)
        assert shape(steps)[-2:] == ["Answered", "close"]


@pytest.mark.parametrize(
    ("fault", "ends_with", "answered"),
    [
        (Fault("reset", at="request"), b"", False),
        (Fault("close", at="mid_head"), b"HTTP/1.1 200 OK\r\ncontent-type: text/even", False),
        (Fault("stall", at="body"), b"\r\n\r\n", False),
        (Fault("reset", at="mid_body", after=0), b"\r\n\r\n", False),
        (Fault("reset", at="mid_body"), b"\r\n\r\n3\r\none\r\n", False),
        (Fault("close", at="mid_body", after=2, split=True), b"3\r\none\r\n3\r\nt", False),
        (Fault("half_close", at="end"), b"5\r\nthree\r\n0\r\n\r", False),
        (Fault("close", at="idle"), b"0\r\n\r\n", True),
    ],
    ids=lambda value: f"{value.at}-{value.after}" if isinstance(value, Fault) else "",
)
def test_faults_come_where_they_were_asked_for(fault: Fault, ends_with: bytes, answered: bool) -> None:
    steps = plan(Answer(fault=fault), EVENTS)
    assert sent(steps).endswith(ends_with)
    assert (sent(steps) == b"") == (ends_with == b"")
    assert steps[-1] == Break(fault.kind)
    assert (Answered() in steps) is answered


def test_lies() -> None:
    assert b"content-length: 99\r\n" in sent(plan(Answer(declared_length=99), JSON))
    both = sent(plan(Answer(declared_length=99), EVENTS))
    assert b"content-length: 99\r\n" in both
    assert b"chunked" in both
    assert sent(plan(Answer(chunk_size_error=2), EVENTS)).count(b"5\r\n") == 2
    assert sent(plan(Answer(trailing=b"junk"), JSON)).endswith(b'{"a":1}junk')
    assert sent(plan(Answer(trailers=(("x-sum", "1"),)), EVENTS)).endswith(b"0\r\nx-sum: 1\r\n\r\n")
    interim = sent(plan(Answer(interim=(100, 103)), JSON))
    assert interim.startswith(b"HTTP/1.1 100 Continue\r\nx-interim: yes\r\n\r\nHTTP/1.1 103 Early Hints\r\n")
    assert plan(Answer(raw=b"SSH-2.0"), JSON) == [Send(b"SSH-2.0"), Answered()]
    assert plan(Answer(raw=b"x", fault=Fault("reset", at="idle")), JSON)[1:] == [Answered(), Break("reset")]


def test_one_byte_at_a_time() -> None:
    steps = plan(Answer(bytes_per_send=1, gap=1.0), JSON)
    assert all(len(step.data) == 1 for step in steps if isinstance(step, Send))
    assert sent(steps) == sent(plan(Answer(), JSON))
    assert Pause(1.0) in steps
