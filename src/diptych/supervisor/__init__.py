"""`diptych up` and `diptych status`: the processes of one machine. Carries no requests itself."""
