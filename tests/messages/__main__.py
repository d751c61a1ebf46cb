"""Write the approval file again."""

from tests.messages import APPROVED, HEAD, sections

APPROVED.write_text("\n".join([HEAD, *(section for _, section in sections())]))
