from docs.scale_step import PAGE, explain_paper, format_needs


def test_the_page_says_what_explain_says():
    page = PAGE.read_text()
    assert format_needs(explain_paper()) in page, "run `make scale-step`"


def test_what_the_paper_s_step_needs_by_hand():
    """0.216 thousand tokens a second and GPU for each thousand of mean response, nine tenths of them sampled."""
    e = explain_paper()
    mean = e.loads[0].tokens / e.loads[0].rollouts / 1000
    row = next(line for line in format_needs(e).splitlines() if line.startswith("| rl-8k |"))
    assert abs(int(row.split("|")[-2].replace(",", "")) - 216 * 0.9 * mean) < 2
    assert "29.5 GB to each engine" in format_needs(e)  # 14.77 billion parameters of two bytes
