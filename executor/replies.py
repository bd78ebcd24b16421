"""The admin client's replies in the kernel's terms, for every family that acts through it.

Stage: under the actors, above `executor.kernel`. A reply that does not say clearly "done" or "that is wrong" is
`NoAnswer`, and then the subject has to be looked at.
"""

from __future__ import annotations

from admin.answers import Answered, Denied, Refused, Rejection, Reply
from executor.kernel import family
from executor.kernel.family import Accepted, Answer, NoAnswer

MAX_REASON = 500
"""Characters of a reply that are kept."""


def answer_to_call(reply: Reply[None]) -> Answer:
    """The answer of a call."""
    if isinstance(reply, Answered):
        return Accepted()
    if isinstance(reply, Refused):
        return family.CallRefused(
            str(reply)[:MAX_REASON], is_absence=reply.status == 404, is_conflict=reply.status == 409
        )
    return no_answer("the call", reply)


def no_answer(what: str, fault: object) -> NoAnswer:
    """For a fault that says nothing about the call; `what` is the call."""
    text = f"{what} was answered with {fault}" if isinstance(fault, Rejection) else str(fault)
    return NoAnswer(text[:MAX_REASON], denied=isinstance(fault, Denied))
