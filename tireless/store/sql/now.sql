select tireless_now() as now
