#!/bin/bash
# cargo's runner for device tests: `runner.sh PROGRAM ARGUMENTS…`, as cargo calls it. It runs a test
# program on the RDMA device, and sees to it that each test that the program lists is reported. A test
# that takes longer than RPMA_TEST_LIMIT seconds, or that takes its program down, is named and has
# failed, and the others go on in a new process.
#
# nextest has a process and a limit for each test as well. But it takes minutes to compile where it
# is missing, and under emulation a process for each of 300 tests takes longer than it saves.
#
# RPMA_GUEST is the command that runs a line of shell in the guest; without it the device is here.
#
# Besides libtest's own lines xtask reads these: "tests listed: N", "test NAME ... FAILED (why)", and
# "machine lost: why".
set -u
limit=${RPMA_TEST_LIMIT:-300}

# Listing needs no device.
case " $* " in *" --list "*) exec "$@" ;; esac

# `cargo bench`: no tests.
case " $* " in *" --bench "*)
    if [ -z "${RPMA_GUEST-}" ]; then exec "$@"; fi
    exec $RPMA_GUEST "cd /src && ${*@Q}" </dev/null
    ;;
esac

if [ -n "${RPMA_GUEST-}" ]; then
    settings="RPMA_TEST_LIMIT=$limit RPMA_TEST_PIDFILE=/run/device-test.pid"
    # The addresses are of another device than the guest's first.
    for name in RPMA_TEST_ADDR RPMA_TEST_ADDR6 RPMA_TEST_MINUTES; do
        if [ -n "${!name-}" ]; then settings+=" $name=${!name}"; fi
    done
    # Through a shell that waits: ssh would report a signal as a failure of its own.
    $RPMA_GUEST "cd /src && $settings bash xtask/runner.sh ${*@Q}; exit \$?" </dev/null
    status=$?
    if [ $status = 255 ]; then echo "machine lost: the guest does not answer"; fi
    exit $status
fi

program=$1
shift
options=() exact=() names=()
for word; do
    case $word in
    --exact) exact=(--exact) ;;
    -*) options+=("$word") ;;
    *) names+=("$word") ;;
    esac
done
mapfile -t left < <(
    "$program" "${options[@]}" "${exact[@]}" "${names[@]}" --list --format=terse |
        sed -n 's/: test$//p'
)
echo "tests listed: ${#left[@]}"
if [ ${#left[@]} = 0 ]; then
    echo "no test here has \"${names[*]}\" in its name; cargo xtask test --list shows all" >&2
    exit 1
fi

# A run that was interrupted may have left its program in the guest, at work on the device.
pidfile=${RPMA_TEST_PIDFILE-}
if [ -n "$pidfile" ] && grep -qs -- --test-threads=1 "/proc/$(cat "$pidfile" 2>&1)/cmdline"; then
    kill -KILL -- "-$(cat "$pidfile")"
fi

pid=
trap 'if [ -n "$pid" ]; then kill -KILL -- "-$pid" 2>/dev/null; fi' EXIT
trap 'exit 130' HUP INT TERM

# The third and fourth field of a process's status: its state, and its parent.
state_of() { cut -d ' ' -f 3 "/proc/$1/stat" 2>/dev/null; }
parent_of() { cut -d ' ' -f 4 "/proc/$1/stat" 2>/dev/null; }

# Looks at what is silent just now: $1 is when the current test must have ended.
idle() {
    if [ -n "$pidfile" ] && [ "$(parent_of $PPID)" = 1 ]; then
        exit 130 # Whoever wanted this to run is gone, and so is its connection.
    elif [ -n "$why" ] && [ $SECONDS -gt $(($1 + 30)) ]; then
        echo "machine lost: the program does not die"
        exit 255
    elif [ -z "$why" ] && [ $SECONDS -ge "$1" ]; then
        why="stopped after $limit s"
        kill -KILL -- "-$pid"
    elif [[ $(state_of "$pid") != [A-Y] ]]; then
        # It has ended, and what it has started holds its output.
        kill -KILL -- "-$pid" 2>/dev/null
    fi
}

begin='^test ([^ ]+)( - should panic)? \.\.\. '
result=0 failures=()
while [ ${#left[@]} != 0 ]; do
    # In a session of its own, so that all of it can be killed.
    exec {out}< <(
        exec setsid "$program" --test-threads=1 "${options[@]}" --exact "${left[@]}" 2>&1
    )
    pid=$!
    if [ -n "$pidfile" ]; then echo "$pid" >"$pidfile"; fi
    current='' why='' reported='' line='' deadline=$((SECONDS + limit))
    while :; do
        IFS= read -r -t 1 -u "$out" part
        got=$?
        line+=$part
        # Above 128: no more for a second. 1: the end. What there is of a line is seen now.
        printf '%s' "$part"
        if [ $got = 0 ]; then echo; fi
        if [[ $line =~ $begin ]] && [ "$current" != "${BASH_REMATCH[1]}" ]; then
            current=${BASH_REMATCH[1]}
            deadline=$((SECONDS + limit))
            for i in "${!left[@]}"; do
                if [ "${left[i]}" = "$current" ]; then unset "left[i]"; fi
            done
        elif [[ $line == "test result: "* ]]; then
            reported=yes deadline=$((SECONDS + 30))
        fi
        if [ $got -gt 128 ]; then
            idle "$deadline"
            continue
        fi
        if [ $got != 0 ]; then break; fi
        if [[ $line =~ $begin.*FAILED$ ]]; then failures+=("$current"); fi
        line=''
        if [ $SECONDS -ge "$deadline" ]; then idle "$deadline"; fi
    done
    exec {out}<&-
    wait "$pid"
    status=$?
    pid=
    if [ -n "$reported" ]; then
        # A program may also fail when its tests are over.
        if [ $status != 0 ]; then result=101; fi
        break
    fi
    result=101
    if [ -z "$why" ] && [ $status -gt 128 ]; then why="killed by signal $((status - 128))"; fi
    : "${why:=the program ended there, with status $status}"
    if [ -z "$current" ]; then
        for name in "${left[@]}"; do echo "test $name ... FAILED (not run: $why)"; done
        failures+=("and ${#left[@]} that were not run")
        break
    fi
    # The beginning of its line may have been seen.
    if [ -n "$line" ]; then echo; fi
    echo "test $current ... FAILED ($why)"
    failures+=("$current ($why)")
    again=yes
done
# libtest has counted the tests of the last process only.
if [ -n "${again-}" ]; then
    echo
    echo "failed, all together:"
    printf '    %s\n' "${failures[@]}"
fi
exit $result
