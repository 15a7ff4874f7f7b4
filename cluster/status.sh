# Usage: sh status.sh JOB. Print running, success or failed for a job of LSF (bjobs) or PBS (qstat). If the scheduler does
# not answer, print running.
if command -v bjobs >/dev/null; then
    case $(bjobs -noheader -o stat "$1" 2>&1) in
        DONE) echo success ;;
        EXIT | *"is not found"*) echo failed ;;
        *) echo running ;;
    esac
    exit
fi
job=$(qstat -x -f "$1" 2>&1)
case $job in
    *"job_state = F"*"Exit_status = 0"*) echo success ;;
    *"job_state = F"* | *"Unknown Job"*) echo failed ;;
    *) echo running ;;
esac
