"""Tables, plots and files of the results of runs."""
