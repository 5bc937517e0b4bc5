"""Results in a form to read: tables for the terminal, plots, and the page of `finelu compare`."""

from finelu.report.comparison import advice, comparison_facts, print_comparison, verdict
from finelu.report.pages import check_page, write_page
from finelu.report.plots import check_plot, plot_convergence, plot_matrix, spy
from finelu.report.tables import properties_in_words, seconds, size, solution_in_words, sparkline, table

__all__ = [
    "advice",
    "check_page",
    "check_plot",
    "comparison_facts",
    "plot_convergence",
    "plot_matrix",
    "print_comparison",
    "properties_in_words",
    "seconds",
    "size",
    "solution_in_words",
    "sparkline",
    "spy",
    "table",
    "verdict",
    "write_page",
]
