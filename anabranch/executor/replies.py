"""Translate replies of the admin client into the kernel's terms, for every family.

Stage: under the actors, above `anabranch.executor.kernel`. A reply that is neither a clear success nor a clear refusal
becomes `NoAnswer`, and the subject has to be looked at.
"""

from anabranch.admin.answers import Answered, Denied, Refused, Rejection, Reply
from anabranch.executor.kernel import family
from anabranch.executor.kernel.family import Answer, CallAccepted, NoAnswer

MAX_REASON = 500
"""Maximum length of a reply's recorded text, in characters."""


def answer_to_call(reply: Reply[None]) -> Answer:
    """Translate the reply to a call."""
    if isinstance(reply, Answered):
        return CallAccepted()
    if isinstance(reply, Refused):
        return family.CallRefused(
            str(reply)[:MAX_REASON], is_absence=reply.status == 404, is_conflict=reply.status == 409
        )
    return no_answer("the call", reply)


def no_answer(request: str, fault: object) -> NoAnswer:
    """Translate a fault that says nothing about a call's effect; `request` describes the call."""
    text = f"{request} was answered with {fault}" if isinstance(fault, Rejection) else str(fault)
    return NoAnswer(text[:MAX_REASON], denied=isinstance(fault, Denied))
