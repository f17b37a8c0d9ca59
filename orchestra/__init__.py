"""The ideas of the papers: no I/O, no prompt text, nothing imported from other folders of ours."""
