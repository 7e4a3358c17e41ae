# Functions for the scripts in this folder, which reproduce figures of papers with gfaas-sim and
# gfaas-place. A script runs its simulations, records each result with `result`, and ends with
# `finish`, which compares the results with the expected ones in NAME.csv, next to NAME.sh.
#
# Usage of every script: NAME.sh [FOLDER]. It writes NAME.csv (the results and the paper's
# figures) and NAME.svg (a picture of both) to FOLDER, by default ./papers, and prints a table.
# The exit status is 1 if a result differs from the expected one by more than its tolerance. To
# accept the results, copy FOLDER/NAME.csv to this folder, adapt the reasons in it, and run make docs.
set -Eeuo pipefail
export LC_ALL=C

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
script=$(basename "$0" .sh)
folder=${1:-papers}
command -v gfaas-sim >/dev/null || PATH=$here/../../build/bin:$PATH
command -v gfaas-sim >/dev/null || {
	echo "$script: gfaas-sim is not in PATH: install gfaas, or run make" >&2
	exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'echo "$script: line $LINENO failed" >&2; exit 1' ERR
echo id,value >"$work/results"

seeds='1 2 3 4 5'

# workload NAME GENERATOR OPTION...: generates a trace and costs for each seed.
workload() {
	local to=$1 seed
	shift
	for seed in $seeds; do
		gfaas-sim generate "$@" --seed "$seed" --costs-out "$work/$to-$seed.costs" --out-file "$work/$to-$seed.trace"
	done
}

# compare TABLE WORKLOAD OPTION...: runs gfaas-sim compare for each seed of a workload, and
# collects the rows in a table.
compare() {
	local table=$1 of=$2 seed
	shift 2
	for seed in $seeds; do
		gfaas-sim compare -q --functions "$work/$of-$seed.costs" --trace "$work/$of-$seed.trace" "$@" -o csv >>"$work/$table"
	done
}

# mean TABLE KEY COLUMN: prints the mean of a column over the rows of a table whose first cell is
# KEY. The table can be several CSV files with the same columns, one after the other.
mean() {
	awk -F, -v key="$2" -v column="$3" '
		NR == 1 { for (i = 1; i <= NF; i++) if ($i == column) at = i }
		$1 == key { sum += $at; n++ }
		END { if (!at || !n) { print "no column " column " or no row " key >"/dev/stderr"; exit 1 } printf "%.9g\n", sum / n }' "$work/$1"
}

# result ID EXPRESSION: records the value of an arithmetic expression.
result() { awk -v id="$1" "BEGIN { printf \"%s,%.9g\\n\", id, $2 }" >>"$work/results"; }

# finish: prints the table, writes the CSV file and the picture, and checks the results.
finish() {
	local form status=0
	mkdir -p "$folder"
	echo "$script ($folder/$script.csv, $folder/$script.svg)"
	figure || status=$?
	[ $status = 0 ] || [ $status = 3 ] || exit 1
	for form in csv svg; do
		figure -o $form --out-file "$folder/$script.$form" 2>/dev/null || [ $? = 3 ]
	done
	exit $((status != 0))
}

figure() { gfaas-sim figure --expected "$here/$script.csv" --results "$work/results" "$@"; }
