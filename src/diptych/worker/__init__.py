"""What the processes of workers have in common: prefill's and decode's."""
