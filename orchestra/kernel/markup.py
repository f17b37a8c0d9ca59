"""What a chat template writes around a turn, and what some engines leave of it in a reply."""

from __future__ import annotations

import re

# Where a turn begins, and where it ends
TURN = r"""(?:<\|(?:im_start|start_header_id|start|user|assistant)\|>|<start_of_turn>|<｜User｜>
    |<｜Assistant｜>|(?:<s>)?\[INST\])"""
END = r"""<(?:\|(?:im_end|eot_id|eom_id|endoftext|end_of_text|end|return)\|>|end_of_turn>|eos>
    |｜end▁of▁sentence｜>)"""
# A message of harmony (gpt-oss) begins the reply or follows another message
MESSAGE = r"(?:\A\s*|(?<=<\|end\|>)|(?<=</think>))(?:<\|start\|>assistant)?"
MARKUP = {
    rf"""(?xs){MESSAGE}(?:<\|channel\|>\w+)?\ to=(?:functions\.)?([\w.-]+)
    (?:[^<]|<\|(?:channel|constrain)\|>){{0,60}}<\|message\|>
    \s*(\{{.*?)(?:<\|(?:call|end)\|>|\Z)""": r'{"name": "\1", "arguments": \2}',
    rf"""(?xs){MESSAGE}<\|channel\|>(?:analysis|commentary)<\|message\|>
    (.*?)(?:<\|end\|>|(?=<\|(?:start|channel)\|>)|\Z)""": r"<think>\1</think>",
    rf"""(?x){MESSAGE}<\|channel\|>final(?:\ ?<\|constrain\|>\w+)?<\|message\|>
    |\A\s*(?:{TURN}(?:assistant|model)(?:<\|end_header_id\|>)?|<\|assistant\|>|<｜Assistant｜>)
    |(?:{END}\s*){{1,8}}\Z|\A\s*</s>\s*\Z""": "",
    # A turn that the model went on with; </s>, unless it is HTML with an <s>
    rf"""(?xs)\A(\s*(?!{END}|{TURN}|</?s>)\S(?:(?!<s>|{TURN}).)*?)
    (?:(?:</s>\s*){{1,8}}\Z|(?:{END}|</s>)\s*{TURN}.*)""": r"\1",
}


def without_markup(reply: str) -> str:
    """The reply itself. Of harmony, the analysis becomes thinking, and a call a tool call."""
    for markup, plain in MARKUP.items():
        reply = re.sub(markup, plain, reply)
    return reply
