{{/* What validation.yaml asks of values. Each check gives a JSON list of sentences, empty where all is well. */}}

{{/* A quantity of Kubernetes, for example 1.5Gi or 250m, as a plain number. */}}
{{- define "tandemmq.quantity" -}}
{{- if kindIs "string" . }}
{{- $unit := regexFind "[A-Za-z]+$" . }}
{{- $factors := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 }}
{{- printf "%f" (mulf (trimSuffix $unit .) (get $factors $unit)) }}
{{- else }}{{ printf "%f" (float64 .) }}{{ end }}
{{- end }}

{{/* A duration of Prometheus or Go, for example 1m30s, in seconds. */}}
{{- define "tandemmq.seconds" -}}
{{- $sum := 0.0 }}
{{- $factors := dict "ms" 0.001 "s" 1 "m" 60 "h" 3600 }}
{{- range regexFindAll "[0-9.]+[a-z]+" . -1 }}
{{- $unit := regexFind "[a-z]+$" . }}
{{- $sum = addf $sum (mulf (trimSuffix $unit .) (get $factors $unit)) }}
{{- end }}
{{- printf "%f" $sum }}
{{- end }}

{{/* A number without a fraction, for a sentence: 2.684354e+09 is 2684354560. */}}
{{- define "tandemmq.plain" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{/* Bytes as a size of Kubernetes, rounded up. */}}
{{- define "tandemmq.mebibytes" -}}
{{ divf . 1048576 | ceil | int64 }}Mi
{{- end }}

{{/*
Texts and keys with a line break below a value: (list path value). What is text of the operator's own, or goes to Kubernetes
as it is, may have some. The characters are those at which a broker splits its file of settings into lines, and their kind.
*/}}
{{- define "tandemmq.brokenLines" -}}
{{- $path := index . 0 }}{{ $value := index . 1 }}{{ $found := list }}
{{- $break := "[\\x00-\\x1f\\x7f\\x{85}\\x{2028}\\x{2029}]" }}
{{- $own := list "pod" "annotations" "commonAnnotations" "extraObjects" "additionalRules" "relabelings" "metricRelabelings" }}
{{- if kindIs "string" $value }}
  {{- if regexMatch $break $value }}
    {{- $found = append $found (printf "%s: it has a line break or another control character, which would begin another line where it is written; put it on one line" $path) }}
  {{- end }}
{{- else if kindIs "map" $value }}
  {{- range $key, $each := $value }}
    {{- if regexMatch $break $key }}
      {{- $found = append $found (printf "%s: the key %q has a line break or another control character; write it on one line" $path $key) }}
    {{- else if not (has $key $own) }}
      {{- $below := $key }}{{ if $path }}{{ $below = printf "%s.%s" $path $key }}{{ end }}
      {{- $found = concat $found (include "tandemmq.brokenLines" (list $below $each) | fromJsonArray) }}
    {{- end }}
  {{- end }}
{{- else if kindIs "slice" $value }}
  {{- range $i, $each := $value }}
    {{- $found = concat $found (include "tandemmq.brokenLines" (list (printf "%s[%d]" $path $i) $each) | fromJsonArray) }}
  {{- end }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{/* The name most like a word, empty if none is: (list word names). By pairs of letters that both have. */}}
{{- define "tandemmq.nearest" -}}
{{- $word := index . 0 | lower }}{{ $best := 0 }}{{ $nearest := "" }}
{{- $pairs := list }}
{{- range $i := until (int (sub (len $word) 1)) }}{{ $pairs = append $pairs (substr $i (int (add $i 2)) $word) }}{{ end }}
{{- range $name := index . 1 }}
  {{- $lower := lower $name }}{{ $both := 0 }}
  {{- range $pairs }}{{ if contains . $lower }}{{ $both = add1 $both }}{{ end }}{{ end }}
  {{- $alike := div (mul 2000 $both) (max 1 (sub (add (len $word) (len $lower)) 2)) }}
  {{- if and (ge $alike 500) (gt $alike $best) }}{{ $best = $alike }}{{ $nearest = $name }}{{ end }}
{{- end }}
{{- $nearest }}
{{- end }}

{{/* Settings that there are not, or that the chart sets: (list path settings component). */}}
{{- define "tandemmq.unknownSettings" -}}
{{- $path := index . 0 }}{{ $component := index . 2 }}{{ $found := list }}
{{- $known := get (include "tandemmq.knownSettings" dict | fromJson) $component }}
{{- range $name, $value := index . 1 }}
  {{- $key := $name | quote | trimAll "\"" }}
  {{- if hasKey $known.derived $key }}
    {{- $found = append $found (printf "%s.%s: leave it out: the chart sets it (%s)" $path $key (get $known.derived $key)) }}
  {{- else if not (hasKey $known.defaults $key) }}
    {{- $nearest := include "tandemmq.nearest" (list $key (concat (keys $known.defaults | sortAlpha) (keys $known.derived | sortAlpha))) }}
    {{- $hint := "remove it; docs/reference has all settings" }}
    {{- if $nearest }}{{ $hint = printf "did you mean %s?" $nearest }}{{ end }}
    {{- $found = append $found (printf "%s.%s: there is no such setting of the %s; %s" $path $key $component $hint) }}
  {{- else if or (kindIs "map" $value) (kindIs "slice" $value) (kindIs "invalid" $value) }}
    {{- $found = append $found (printf "%s.%s: write one text, number or true/false" $path $key) }}
  {{- end }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{/* Variables by which a pod's environment would set what the chart sets: (list path variables components). */}}
{{- define "tandemmq.takenVariables" -}}
{{- $known := include "tandemmq.knownSettings" dict | fromJson }}{{ $path := index . 0 }}{{ $found := list }}
{{- range $component := index . 2 }}
  {{- range $variable := index $ 1 }}
    {{- with get (get $known $component).variables $variable.name }}
      {{- $found = append $found (printf "%s: %s would override what the chart sets (%s); leave it out" $path $variable.name .) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{/*
Rules between a broker's settings, which it would refuse at its start: (list root group). And its volume against the files
that it reserves: a CommitLog file, the next one before the first is full, and an IndexFile.
*/}}
{{- define "tandemmq.brokerProblems" -}}
{{- $root := index . 0 }}{{ $group := index . 1 }}{{ $found := list }}
{{- $own := default dict $group.settings }}
{{- $where := "brokers.settings" }}
{{- if $own }}{{ $where = printf "brokerGroups %s: settings" $group.name }}{{ end }}
{{- $known := (include "tandemmq.knownSettings" dict | fromJson).broker }}
{{- $all := mergeOverwrite (deepCopy $known.defaults) (deepCopy $root.Values.brokers.settings) (deepCopy $own) }}
{{- $orders := list
      (list "diskMaxUsedSpaceRatio" "diskSpaceCleanForciblyRatio" "<=" "files that expired go first, the others when that did not help")
      (list "diskSpaceCleanForciblyRatio" "diskSpaceWarningLevelRatio" "<=" "else sends are refused before anything is deleted")
      (list "haSendHeartbeatInterval" "haHousekeepingInterval" "<" "else idle replication is cut")
      (list "brokerHeartbeatInterval" "brokerNotActiveTimeoutMillis" "<" "else the NameServers take the broker for dead") }}
{{- range $orders }}
  {{- $low := get $all (index . 0) }}{{ $high := get $all (index . 1) }}
  {{- if or (gt (float64 $low) (float64 $high)) (and (eq (index . 2) "<") (eq (float64 $low) (float64 $high))) }}
    {{- $found = append $found (printf "%s.%s: %s, but %s must hold and %s is %s: %s; change one of them" $where (index . 0) (include "tandemmq.plain" $low) (printf "%s %s %s" (index . 0) (index . 2) (index . 1)) (index . 1) (include "tandemmq.plain" $high) (index . 3)) }}
  {{- end }}
{{- end }}
{{- if and (ne (default "disabled" $all.haTlsMode) "disabled") (not (include "tandemmq.serviceTls" $root)) }}
  {{- $found = append $found (printf "%s.haTlsMode: %s needs certificates, and links between services are open; set security.serviceTlsMode" $where $all.haTlsMode) }}
{{- end }}
{{- $file := float64 $all.mappedFileSizeCommitLog }}
{{- if gt (addf $all.maxMessageSize 65544) $file }}
  {{- $found = append $found (printf "%s.maxMessageSize: %s bytes and 64 KiB for the rest of a message do not fit a file of mappedFileSizeCommitLog, %s bytes; change one of them" $where (include "tandemmq.plain" $all.maxMessageSize) (include "tandemmq.plain" $file)) }}
{{- end }}
{{- $index := 0.0 }}
{{- if $all.messageIndexEnable }}{{ $index = addf 40 (mulf 4 $all.maxHashSlotNum) (mulf 20 $all.maxIndexNum) }}{{ end }}
{{- $needed := divf (addf (mulf 2 $file) $index) $all.diskSpaceWarningLevelRatio }}
{{- $persistence := mergeOverwrite (deepCopy $root.Values.brokers.persistence) (default dict $group.persistence) }}
{{- if and $persistence.enabled (lt (float64 (include "tandemmq.quantity" $persistence.size)) (float64 $needed)) }}
  {{- $at := "brokers.persistence.size" }}
  {{- if (default dict $group.persistence).size }}{{ $at = printf "brokerGroups %s: persistence.size" $group.name }}{{ end }}
  {{- $found = append $found (printf "%s: %s is less than the files a broker reserves, two of mappedFileSizeCommitLog (%s) and one of the index (%s), below diskSpaceWarningLevelRatio (%v); set at least %s, or smaller files as deploy/helm/overlays/local.yaml does" $at $persistence.size (include "tandemmq.mebibytes" $file) (include "tandemmq.mebibytes" $index) $all.diskSpaceWarningLevelRatio (include "tandemmq.mebibytes" $needed)) }}
{{- end }}
{{- $probe := $root.Values.brokers.startupProbe }}
{{- $patience := mul 1000 (get $probe "periodSeconds" | default 10) (get $probe "failureThreshold" | default 3) }}
{{- if lt (int64 $patience) (int64 $all.masterRecoveryTimeout) }}
  {{- $found = append $found (printf "brokers.startupProbe: periodSeconds × failureThreshold is %d s, but a broker may look for its group for masterRecoveryTimeout, %v ms, and would be killed meanwhile; raise failureThreshold" (div $patience 1000) (include "tandemmq.plain" $all.masterRecoveryTimeout)) }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{/* Requests and limits of a container: (list path resources memoryMin), the last in bytes, 0 for none. */}}
{{- define "tandemmq.resourceProblems" -}}
{{- $path := index . 0 }}{{ $resources := default dict (index . 1) }}{{ $found := list }}
{{- $limits := default dict $resources.limits }}
{{- range $name, $request := default dict $resources.requests }}
  {{- if hasKey $limits $name }}
    {{- $limit := get $limits $name }}
    {{- if gt (float64 (include "tandemmq.quantity" $request)) (float64 (include "tandemmq.quantity" $limit)) }}
      {{- $found = append $found (printf "%s.limits.%s: %s is below what is requested, %s; raise it, or lower requests.%s" $path $name (include "tandemmq.plain" $limit) (include "tandemmq.plain" $request) $name) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- range $kind := list "requests" "limits" }}
  {{- $memory := get (default dict (get $resources $kind)) "memory" }}
  {{- if hasSuffix "m" (toString $memory) }}
    {{- $found = append $found (printf "%s.%s.memory: %s are thousandths of a byte; write %si" $path $kind $memory (trimSuffix "m" $memory | printf "%sM")) }}
  {{- else if and (eq $kind "limits") $memory (lt (float64 (include "tandemmq.quantity" $memory)) (float64 (index $ 2))) }}
    {{- $found = append $found (printf "%s.limits.memory: in %s no process of TandemMQ can start; set at least %s" $path (include "tandemmq.plain" $memory) (include "tandemmq.mebibytes" (index $ 2))) }}
  {{- end }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{/* The bits of an address of IPv4 or IPv6, as text. */}}
{{- define "tandemmq.addressBits" -}}
{{- $halves := list }}
{{- range splitList "::" . }}
  {{- $bits := "" }}
  {{- range splitList ":" . }}
    {{- if contains "." . }}{{ range splitList "." . }}{{ $bits = printf "%s%08b" $bits (atoi .) }}{{ end }}
    {{- else if . }}{{ $bits = printf "%s%016b" $bits (int (printf "0x%s" .)) }}{{ end }}
  {{- end }}
  {{- $halves = append $halves $bits }}
{{- end }}
{{- join (repeat (sub 128 (len (join "" $halves)) | max 0 | int) "0") $halves }}
{{- end }}

{{/* "true" if the second network is a smaller part of the first, as Kubernetes asks of an exception: (list cidr except). */}}
{{- define "tandemmq.isWithin" -}}
{{- $outer := splitList "/" (index . 0) }}{{ $inner := splitList "/" (index . 1) }}
{{- $length := last $outer | atoi }}
{{- $one := include "tandemmq.addressBits" (first $outer) | substr 0 $length }}
{{- $other := include "tandemmq.addressBits" (first $inner) | substr 0 $length }}
{{- if and (eq (contains ":" (first $outer)) (contains ":" (first $inner))) (lt $length (last $inner | atoi)) (eq $one $other) }}true{{ end }}
{{- end }}

{{/* Ranges of cron that run backwards: (list path schedule). */}}
{{- define "tandemmq.scheduleProblems" -}}
{{- $path := index . 0 }}{{ $found := list }}
{{- $names := dict "jan" 1 "feb" 2 "mar" 3 "apr" 4 "may" 5 "jun" 6 "jul" 7 "aug" 8 "sep" 9 "oct" 10 "nov" 11 "dec" 12 "sun" 0 "mon" 1 "tue" 2 "wed" 3 "thu" 4 "fri" 5 "sat" 6 }}
{{- range $range := regexFindAll "[0-9A-Za-z]+-[0-9A-Za-z]+" (index . 1) -1 }}
  {{- $ends := list }}
  {{- range splitList "-" $range }}{{ $ends = append $ends (ternary (get $names (lower .)) (atoi .) (hasKey $names (lower .)) | int) }}{{ end }}
  {{- if gt (first $ends) (last $ends) }}
    {{- $found = append $found (printf "%s: the range %s runs backwards; write two, for example 22-23,0-5 for hours over midnight" $path $range) }}
  {{- end }}
{{- end }}
{{- toJson $found }}
{{- end }}
