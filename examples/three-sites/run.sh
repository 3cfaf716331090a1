#!/bin/sh
# All that README.md says, on one machine: sh run.sh [FOLDER [PORT]]
set -eu
cd "$(dirname "$0")"
work=${1:-work}
port=${2:-9443}
mkdir -p "$work"
work=$(cd "$work" && pwd)

export FLWR_HOME="$work/flower" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
started=""
end() {
  trap - EXIT
  [ -z "$started" ] || kill $started 2>/dev/null || true
  wait
}
trap end EXIT
trap 'exit 130' INT TERM

# data: each hospital has its own, and the server some that is public
python make_data.py "$work"

# the server's operator makes certificates, and a key for each node
discreet certificates "$work/server" --server localhost,127.0.0.1 --sites north,south,west

# each hospital makes its folder, and sends member.toml to the operator
number=0
for site in north south west; do
  discreet site init "$work/$site/site" --number $number --name $site --limits limits.toml \
    --source hospital:patients --option path="$work/$site/patients.csv"
  number=$((number + 1))
done

# the operator makes the roster, and each hospital pins it, once the fingerprints are compared
discreet roster "$work/roster.toml" "$work/north/site/member.toml" "$work/south/site/member.toml" \
  "$work/west/site/member.toml" --identity "$work/server/identity.pem"
for site in north south west; do discreet site pin "$work/$site/site" "$work/roster.toml"; done

# the server
flower-superlink --host 127.0.0.1 --port "$port" --enable-supernode-auth \
  --disable-runtime-dependency-installation --ssl-ca-certfile "$work/server/ca.pem" \
  --ssl-certfile "$work/server/server.pem" --ssl-keyfile "$work/server/server.key" \
  >"$work/superlink.log" 2>&1 &
started="$started $!"
mkdir -p "$FLWR_HOME"
cat >"$FLWR_HOME/config.toml" <<END
[superlink]
default = "hospitals"
[superlink.hospitals]
address = "127.0.0.1:$port"
root-certificates = "$work/server/ca.pem"
insecure = false
END
until python -c "import socket; socket.create_connection(('127.0.0.1', $port)).close()" 2>/dev/null; do sleep 1; done
for site in north south west; do flwr supernode register "$work/server/nodes/$site.pub"; done

# each hospital: the process that acts for it, and Flower's node, which only relays
own=$((port + 1))
for site in north south west; do
  discreet site "$work/$site/site" >"$work/$site/site.log" 2>&1 &
  started="$started $!"
  discreet node --superlink "127.0.0.1:$port" --root-certificates "$work/server/ca.pem" \
    --auth-supernode-private-key "$work/server/nodes/$site.key" --port $own \
    --node-config "site='$work/$site/site'" >"$work/$site/node.log" 2>&1 &
  started="$started $!"
  own=$((own + 1))
done

# the run
cat >"$work/run.toml" <<END
experiment = "$PWD/experiment.toml"
out = "$work/run"
identity = "$work/server/identity.pem"
roster = "$work/roster.toml"
data-source = "hospital:public"
data-options = "path = '$work/public/patients.csv'"
log = "$work/server.log"
ending = "$work/ending.json"
END
flwr run app --run-config "$work/run.toml"
until [ -f "$work/ending.json" ] && ! grep -q running "$work/ending.json"; do sleep 1; done
cat "$work/ending.json"
echo
grep -q '"done"' "$work/ending.json"
